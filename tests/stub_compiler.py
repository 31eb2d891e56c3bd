"""A compiler that takes no time, for tests of what happens around it.

A stub rule file is plain text: each line is a word the stub obeys.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from momentgen.errors import BuildError

BOUNDS = {"mean": "2.5 ulp", "var": "3 ulp", "dmean_dmu": "9.5 ulp", "dvar_dvar": "10 ulp"}


@dataclass(frozen=True)
class Variant:
    name: str
    bounds: dict[str, str]
    operations: dict[str, int]


@dataclass(frozen=True)
class Compiled:
    rule: str
    files: dict[str, str]
    variants: tuple[Variant, ...]


def compile_stub(rule: str, path: Path, progress: Callable[[str], None]) -> Compiled:
    """Files that depend on the text of the rule alone, unless it says to fail."""
    words = path.read_text().split()
    progress("derive")
    if "fail" in words:
        others = (("halves", "expected a line"), ("smooth", "expected no kink")) if "twice" in words else ()
        raise BuildError(rule, "derive", "the integral diverges", "exp(x**2)", others)
    if "tool" in words:
        raise BuildError("C", "emit", "no such file")
    if "defect" in words:
        raise ZeroDivisionError("a defect")
    if "die" in words:
        os.kill(os.getpid(), signal.SIGKILL)
    if "child" in words:
        child = subprocess.Popen(["sleep", "60"])
        (path.parent / f"{rule}.child").write_text(f"{child.pid} {tempfile.mkdtemp()}")
    if "slow" in words:
        (path.parent / f"{rule}.started").touch()
        time.sleep(60)
    progress("emit")
    files = {
        "__init__.py": f'"""The op {rule}."""\n\n{rule} = {words!r}\n',
        "exact.c": f"/* {rule} {words} */\n",
        "exact.json": "{}\n",
    }
    return Compiled(rule, files, (Variant("exact", BOUNDS, {"forward": 120, "backward": 150}),))

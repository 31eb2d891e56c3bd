"""An install from nothing: seconds, import and first call with and without a PATH, and bytes by package.

Each Python gets an empty environment and a wheel of momentgen.  pip downloads first, then installs from these files
alone, and README's first code runs.  The first call of ``gelu`` is timed in processes of their own, with an empty cache
of kernels: with this machine's PATH, and with an empty one, where no compiler can be found.  Imports and calls are in
processor seconds.

    make wheels
    python benchmarks/install.py dist/*.whl --python python3.11 python3.13

pip's own settings choose torch's build: PIP_CONSTRAINT names a file with `torch==2.13.0+cpu`.  The committed result has
one run of each build.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
#: what `pip install momentgen` brought before there were extras, beyond what it brings now
FORMERLY = [
    "mpmath>=1.3",
    "python-flint>=0.6",
    "rich>=13",
    "scikit-learn>=1.6",
    "scipy>=1.11",
    "sympy>=1.12",
    "typer>=0.12",
]
TURNS = 3

_SIZES = """
import json
from importlib.metadata import distributions
sizes = {}
for each in distributions():
    paths = [path.locate() for path in each.files or ()]
    sizes[each.name.lower()] = sum(path.stat().st_size for path in paths if path.is_file())
print(json.dumps(sizes))
"""

_FIRST = """
import json, sys, time, warnings
warnings.simplefilter("error")
begun = time.process_time()
import torch
torched = time.process_time()
import momentgen.generated
from momentgen.generated import gelu
imported = time.process_time()
x = torch.zeros(3), torch.ones(3)
torch.add(*x)
called = time.process_time()
gelu(*x)
done = time.process_time()
found = {"import torch": torched - begun, "import momentgen": imported - torched, "first call": done - called}
print(json.dumps(found))
"""


def main() -> None:
    from _common import console, environment, save

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="+", default=["python3"], help="interpreters, each by its command")
    asked = parser.parse_args()
    found = {}
    for python in asked.python:
        with tempfile.TemporaryDirectory() as folder:
            one = measured(python, asked.wheel.resolve(), Path(folder))
        found[one.pop("python")] = one
        console.print_json(data=one)
    save("install", {"environment": environment(), "wheel": asked.wheel.stat().st_size, "found": found})


def measured(python: str, wheel: Path, folder: Path) -> dict[str, Any]:
    """All figures of one interpreter."""
    subprocess.run([python, "-m", "venv", str(folder / "env")], check=True)
    own = str(folder / "env" / "bin" / "python")
    cache = {**os.environ, "MOMENTGEN_CACHE": str(folder / "cache")}
    cache.pop("PYTHONPATH", None)

    def run(*command: str, **environment: str) -> str:
        done = subprocess.run(
            [own, *command], env={**cache, **environment}, cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return done.stdout

    def timed(*command: str, **environment: str) -> dict[str, float]:
        """Seconds by the clock, and of the processor: on a busy machine the second says more."""
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        run(*command, **environment)
        clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"seconds": round(clock, 1), "processor seconds": round(processor, 1)}

    def first_call(**environment: str) -> dict[str, float]:
        turns = [json.loads(run("-c", _FIRST, **environment)) for _ in range(TURNS)]
        return {name: round(statistics.median(turn[name] for turn in turns), 4) for name in turns[0]}

    files = str(folder / "files")
    found: dict[str, Any] = {"python": run("-c", "import platform; print(platform.python_version())").strip()}
    before = json.loads(run("-c", _SIZES))
    found["download"] = timed("-m", "pip", "download", "--quiet", "--dest", files, str(wheel))
    offline = ("-m", "pip", "install", "--quiet", "--no-index", "--find-links", files)
    found["install after the download"] = timed(*offline, str(wheel))
    sizes = {name: size for name, size in json.loads(run("-c", _SIZES)).items() if name not in before}
    (folder / "readme.py").write_text(readme())
    found["README's code"] = timed("readme.py")
    found["README's code without PATH"] = timed("readme.py", PATH="", CC="")
    found["with PATH"], found["without PATH"] = first_call(), first_call(PATH="", CC="")
    found["compiled here"] = sorted(path.name for path in folder.glob("cache/*.so"))
    run("-m", "pip", "install", "--quiet", *FORMERLY)
    formerly = {name: size for name, size in json.loads(run("-c", _SIZES)).items() if name not in before}
    found["bytes"] = dict(sorted(sizes.items(), key=lambda each: -each[1]))
    found["bytes in all"] = sum(sizes.values())
    found["bytes that went"] = {name: size for name, size in formerly.items() if name not in sizes}
    found["bytes in all before"] = sum(formerly.values())
    return found


def readme() -> str:
    """README's first code."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert match
    return match[1]


if __name__ == "__main__":
    main()

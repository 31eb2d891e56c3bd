"""The steps of ``docs/extending.md``, followed in a copy of the package, lead to what the page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from momentgen.native.c_compiler import find_compiler

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
_BLOCK = re.compile(r'^( *)```(?:python|c) title="([^"]+)"\n(.*?)^\1```$', re.M | re.S)


def follow(root: Path) -> None:
    """Follow the page's steps: write new files whole, and lines of others after the first one shown."""
    for _, name, block in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        path, text = root / name, textwrap.dedent(block)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        first, *more = text.splitlines()
        places = [k for k, line in enumerate(lines) if line.strip() == first.strip()]
        assert len(places) == 1, f"{name}: `{first.strip()}` stands there {len(places)} times"
        (at,) = places
        indent = " " * (len(lines[at]) - len(lines[at].lstrip()) - (len(first) - len(first.lstrip())))
        lines[at + 1 : at + 1] = [indent + line if line else "" for line in more]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
def test_the_steps_of_the_page_add_a_rule_a_strategy_a_primitive_and_a_backend(tmp_path: Path) -> None:
    unused = shutil.ignore_patterns("__pycache__", "laws", "nn", "inference")
    shutil.copytree(ROOT / "momentgen", tmp_path / "momentgen", ignore=unused)
    follow(tmp_path)
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("extended_compiler.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "MOMENTGEN_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ways = {name: certificate["method"]["way"] for name, certificate in found["certificates"].items()}
    assert ways == {"wave": "elementary", "tilted": "lines"}
    for certificate in found["certificates"].values():
        ((unit, goal),) = certificate["goal"].items()
        assert all(bound[unit] <= goal for bound in certificate["bounds"].values())
    assert found["primitive"] == {"meaning": -3.0, "numpy": True, "triton": True}
    assert found["backend"] == [0, 0]

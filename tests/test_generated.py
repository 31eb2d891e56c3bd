"""generated/ is what rules/ give, wherever and however often they are built."""

import importlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from momentgen.build import check

ROOT = Path(__file__).parents[1]


def test_generated_is_fresh() -> None:
    findings = [f"{finding.path}: {finding.cause}" for finding in check(ROOT / "rules")]
    assert findings == [], "run `momentgen build rules/`"


def test_generated_is_at_most_half_of_what_it_once_was() -> None:
    files = [path for path in (ROOT / "generated").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= 9_700_000 / 2


@pytest.mark.slow
def test_every_build_gives_the_bytes_that_are_committed(tmp_path: Path) -> None:
    contents = []
    # Sets of strings come in another order for another seed, and an older processor, or another maker's, has other
    # code in NumPy and OpenBLAS: the build must depend on neither.
    dispatched = importlib.import_module("numpy._core._multiarray_umath").__cpu_dispatch__
    older = {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched), "OPENBLAS_CORETYPE": "Prescott"}
    for seed, processor in (("1", {}), ("2", older if platform.machine() in ("x86_64", "AMD64") else {})):
        out = tmp_path / seed
        command = [sys.executable, "-m", "momentgen", "build", str(ROOT / "rules"), "--out", str(out)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed, **processor})
        contents.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()})
    first, second = contents
    assert {str(name) for name in first.keys() | second.keys() if first.get(name) != second.get(name)} == set()
    committed = {name: (ROOT / "generated" / name).read_bytes() for name in first}
    assert {str(name) for name in first if first[name] != committed[name]} == set()

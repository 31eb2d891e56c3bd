"""C that the build runs itself: by the compiler that the user chose, as the runtime's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from other_processes import script

from momentgen.compiler.ir.interpreter import Interpreter
from momentgen.compiler.ir.program import Builder
from momentgen.compiler.toolchain.c_libraries import compiled
from momentgen.native.c_compiler import CompilerError, find_compiler


def test_the_build_compiles_by_the_compiler_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = script(tmp_path / "mycc", f'echo "$@" >> {tmp_path}/calls; exec cc "$@"')
    monkeypatch.setenv("CC", f"{chosen} -pipe")
    assert find_compiler() == (str(chosen), "-pipe")
    assert compiled(f"int chosen(void) {{ return {len(str(tmp_path))}; }}")["chosen"]() == len(str(tmp_path))
    assert "-pipe" in (tmp_path / "calls").read_text()


@pytest.mark.slow
def test_a_build_of_a_rule_calls_the_compiler_of_the_environment(tmp_path: Path) -> None:
    chosen = script(tmp_path / "mycc", f'echo "$@" >> {tmp_path}/calls; exec cc "$@"')
    (tmp_path / "rules").mkdir()
    shutil.copy(Path(__file__).parents[2] / "rules" / "abs.py", tmp_path / "rules")
    command = [sys.executable, "-m", "momentgen", "build", "rules", "--jobs", "1"]
    own = {**os.environ, "CC": str(chosen), "MOMENTGEN_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
    assert "1 built, 0 fresh" in done.stdout, done.stderr
    assert len((tmp_path / "calls").read_text().splitlines()) >= 2


def test_a_compiler_that_is_not_there_stops_the_build_instead_of_serving_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    b = Builder("f", inputs=("x",))
    y = b.add(b.input("x"), b.input("x"))
    interpreter = Interpreter(b)
    with pytest.raises(CompilerError, match=r"\$CC is '/nowhere/cc', and no such compiler is found"):
        interpreter.values(interpreter.points({"x": [1.0]}, {}), {"y": y})

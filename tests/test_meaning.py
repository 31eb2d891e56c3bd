"""What code means does not depend on how it is written down, and which code counts follows from what it imports."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import momentgen
from momentgen.keep.compiler_state import ROOTS, CompilerState, compiler_sources
from momentgen.keep.meaning import Sources, meaning, normal_form

PACKAGE = Path(momentgen.__file__).parent
CODE = '''
"""Module."""

import os


class A:
    """Class."""

    x: int = 1  # one

    def f(self, a, *, b=(1, 2)):
        """Method."""
        return f"{a!r:>{b[0]}} 'quoted'" + os.sep
'''


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("  # one", ""),
        ('"""Module."""', ""),
        ('"""Class."""', '"""Other."""'),
        ('        """Method."""\n', ""),
        ("x: int = 1", "x: int = (1)"),
        ("(1, 2)", "(\n        1,\n        2,\n    )"),
        ("import os\n\n", "import os\n"),
        ("f\"{a!r:>{b[0]}} 'quoted'\"", 'f"""{a!r:>{b[0]}} \'quoted\'"""'),
    ],
)
def test_comments_docstrings_and_layout_have_no_meaning(was: str, now: str) -> None:
    assert was in CODE
    assert meaning(CODE.replace(was, now)) == meaning(CODE)


@pytest.mark.parametrize(
    ("was", "now"),
    [("= 1", "= 2"), ("= 1", "= 1.0"), ("= 1", "= True"), ("!r", "!s"), ("*, b", "b"), ("os.sep", "os.linesep"),
     ("x: int", "y: int"), ("(1, 2)", "[1, 2]"), ("quoted", "Quoted"), ("return ", "")],
)  # fmt: skip
def test_all_else_has_meaning(was: str, now: str) -> None:
    assert was in CODE
    assert meaning(CODE.replace(was, now)) != meaning(CODE)


def test_none_is_not_the_absence_of_a_value() -> None:
    assert normal_form("x = None") != normal_form("x = 0")
    assert normal_form("def f(a, b=None): pass") != normal_form("def f(a, b): pass")
    assert normal_form("f(None)") != normal_form("f()")


def package(folder: Path, **modules: str) -> Sources:
    for name, text in {"__init__": "", **modules}.items():
        path = folder / "p" / f"{name.replace('__', '/') if name != '__init__' else name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Sources(folder / "p")


def test_what_is_reached_follows_imports_however_they_are_written(tmp_path: Path) -> None:
    sources = package(
        tmp_path,
        a="import p.b\nfrom p import c\nfrom p.d import x\nfrom . import e\nfrom .f import y\nimport os",
        b="def g():\n    from p.g import z",
        **dict.fromkeys("cdefgh", "x = y = z = 1"),
    )
    assert sources.reached(["p.a"]) == tuple(f"p.{name}" for name in "abcdefg")


def test_a_package_passes_a_name_on_without_what_else_it_imports(tmp_path: Path) -> None:
    sources = package(tmp_path, a="from p.q import wanted", b="", c="", q="")
    (tmp_path / "p/q.py").unlink()
    (tmp_path / "p/q").mkdir()
    (tmp_path / "p/q/__init__.py").write_text("from p.b import wanted\nfrom p.c import other\nown = 1")
    assert sources.reached(["p.a"]) == ("p.a", "p.b", "p.q")
    (tmp_path / "p/a.py").write_text("from p.q import own")
    assert Sources(tmp_path / "p").reached(["p.a"]) == ("p.a", "p.b", "p.c", "p.q")


def test_sources_say_whether_they_are_as_they_were_read_also_in_another_process(tmp_path: Path) -> None:
    sources = package(tmp_path, a="from p.b import x", b="x = 1")
    reached, meanings = sources.reached(["p.a"]), dict(sources.meanings(["p.b"]))
    again = pickle.loads(pickle.dumps(sources))
    assert again.are_current()
    (tmp_path / "p/b.py").write_text("x = 2")
    assert not again.are_current()
    assert (again.reached(["p.a"]), dict(again.meanings(["p.b"]))) == (reached, meanings)


def test_a_root_that_is_no_module_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"p\.z"):
        package(tmp_path).reached(["p.z"])


# ---------------------------------------------------------------- the compiler's own


#: imported by packages as they are loaded, though nothing that a build calls is in them
_BYSTANDERS = {"momentgen"}


def test_what_the_compiler_loads_is_what_counts() -> None:
    code = f"import {', '.join(ROOTS)}, sys; print(*(m for m in sys.modules if m.split('.')[0] == 'momentgen'))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout
    counted = set(compiler_sources().reached(ROOTS))
    loaded = {name for name in shown.split() if (found := compiler_sources().digest(name)) and found}
    only_packages = {name for name in loaded - counted if (PACKAGE.parent / name.replace(".", "/")).is_dir()}
    assert loaded - counted - only_packages <= _BYSTANDERS
    assert {name for name in counted if name.startswith("momentgen.compiler.")} <= loaded


def test_no_module_of_the_compiler_reads_a_docstring() -> None:
    modules = [PACKAGE.parent / name.replace(".", "/") for name in compiler_sources().reached(ROOTS)]
    paths = [path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in modules]
    assert [path.name for path in paths if "__doc__" in path.read_text() or "getdoc" in path.read_text()] == []


_TRACED = """
import sys, types
files = set()
sys.setprofile(lambda frame, event, arg: files.add(frame.f_code.co_filename) if event == "call" else None)
import sympy
from momentgen.compiler.pipeline import compile_rule
from momentgen.rule import Accuracy, Rule, x
files.clear()
compile_rule(Rule("quick", f={f}, accuracy={accuracy}))
sys.setprofile(None)
print(*sorted(f for f in files if {folder!r} in f), sep="\\n")
"""


def functions_called_in(f: str, accuracy: str) -> set[str]:
    """Full names of momentgen's modules with a function that runs while a rule is compiled."""
    program = _TRACED.format(f=f, accuracy=accuracy, folder=f"{PACKAGE}/")
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout.split("\n")
    paths = [Path(line).relative_to(PACKAGE.parent).with_suffix("") for line in filter(None, shown)]
    return {".".join(path.parts).removesuffix(".__init__") for path in paths}


@pytest.mark.parametrize(
    "f",
    [
        "x**2",
        pytest.param("sympy.Max(x, 0)", marks=pytest.mark.slow),
        pytest.param("sympy.tanh(x)", marks=pytest.mark.slow),
        pytest.param("sympy.sqrt(1 + x**2)", marks=pytest.mark.slow),
    ],
)
def test_every_function_that_runs_in_a_build_is_in_a_module_that_counts(f: str) -> None:
    called = functions_called_in(f, "Accuracy(ulp={'exact': 400.0})" if "Max" in f else "Accuracy(moments=True)")
    assert "momentgen.compiler.certify.bounds" in called
    assert called <= set(compiler_sources().reached(ROOTS))


def test_the_state_of_the_compiler_survives_its_text() -> None:
    state = CompilerState.of(compiler_sources())
    assert CompilerState.from_json(state.to_json()) == state
    assert state.changes(compiler_sources()) == ()

"""Lower layers never import higher ones: start-up stays short, and a training process never loads the compiler."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import momentgen

PACKAGE = Path(momentgen.__file__).parent
ROOT = PACKAGE.parent
# folder or file -> top-level modules and parts of momentgen that it must not import, at any depth of its code
FORBIDDEN = {
    "momentgen/promise.py": ("torch", "sympy", "numpy", "mpmath", "flint", "momentgen"),
    "momentgen/errors.py": ("torch", "sympy", "numpy", "mpmath", "flint", "momentgen"),
    "momentgen/rule.py": ("torch", "triton", "momentgen.runtime"),
    "momentgen/compiler": ("torch", "momentgen.runtime", "momentgen.built", "momentgen.report", "momentgen.cli"),
    "momentgen/built.py": ("torch", "momentgen.runtime", "momentgen.report", "momentgen.verify", "momentgen.cli"),
    "momentgen/report": ("torch", "typer", "momentgen.runtime", "momentgen.verify", "momentgen.cli"),
    "momentgen/runtime": (
        "sympy",
        "mpmath",
        "flint",
        "momentgen.compiler",
        "momentgen.rule",
        "momentgen.laws",
        "momentgen.nn",
        "momentgen.cli",
    ),
    "momentgen/laws": (
        "sympy",
        "mpmath",
        "flint",
        "momentgen.compiler",
        "momentgen.rule",
        "momentgen.nn",
        "momentgen.inference",
        "momentgen.cli",
    ),
    "momentgen/nn": (
        "sympy",
        "mpmath",
        "flint",
        "momentgen.compiler",
        "momentgen.rule",
        "momentgen.inference",
        "momentgen.cli",
    ),
    "momentgen/inference": ("sympy", "mpmath", "flint", "momentgen.compiler", "momentgen.rule", "momentgen.cli"),
    # mpmath: kernel_scalars computes a parameter's derived numbers with it, once a value.
    "generated": ("sympy", "flint", "momentgen.compiler", "momentgen.rule", "momentgen.cli"),
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_no_source_imports_a_higher_layer(layer: str) -> None:
    files = [ROOT / layer] if layer.endswith(".py") else sorted((ROOT / layer).rglob("*.py"))
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imports(file)
        for part in FORBIDDEN[layer]
        if name == part or name.startswith(part + ".")
    ]
    assert not wrong


def loaded_by(code: str) -> set[str]:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / "tests"), str(ROOT)]))
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(done.stdout.split())


def test_importing_momentgen_is_light() -> None:
    assert not {"torch", "sympy", "numpy", "triton"} & loaded_by("import momentgen")


@pytest.mark.parametrize("name", ["momentgen.laws", "momentgen.nn", "momentgen.inference"])
def test_importing_networks_loads_nothing_heavy_but_torch(name: str) -> None:
    heavy = {"torch._dynamo", "torch._inductor", "torch.fx", "triton", "sympy", "mpmath", "flint", "scipy", "sklearn"}
    assert not heavy & (loaded_by(f"import {name}") - loaded_by("import torch"))


def test_an_op_computes_without_the_compiler_or_triton() -> None:
    loaded = loaded_by("import torch, runtime.fixture_rules as rules\nrules.square(torch.ones(2), torch.ones(2))")
    assert "momentgen.runtime.native" in loaded
    assert not {"triton", "flint", "momentgen.rule", "momentgen.compiler"} & loaded


def test_the_compiler_needs_no_torch() -> None:
    assert "torch" not in loaded_by(
        "import momentgen.rule, momentgen.compiler.ir.program, momentgen.compiler.ir.evaluate"
    )


LAWS = PACKAGE / "laws"
#: parts of momentgen.laws from the lowest up; what is not named here stands between ``law`` and ``rules``
LOWEST = ("table", "unsupported", "notes", "precision", "lost", "debug", "accuracy", "propagations", "activations")
HIGHEST = (
    "rules", "border", "convert", "examples", "unbatched", "backward", "parameters_adjoint", "adjoint_outputs",
    "covariance_outputs", "controlled",
)  # fmt: skip


def arrows() -> dict[str, set[str]]:
    """Module of ``momentgen.laws`` -> those that it imports, at any depth of its code but for types alone."""
    modules = {
        ".".join(path.relative_to(LAWS).with_suffix("").parts): path
        for path in LAWS.rglob("*.py")
        if path.name != "__init__.py"
    }
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                node.body = []
        named: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                base = node.module or ""
                named |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        found[module] = {name.removeprefix("momentgen.laws.") for name in named} & modules.keys() - {module}
    return found


def test_no_modules_of_laws_import_each_other_in_a_circle() -> None:
    below = arrows()
    while free := [module for module, used in below.items() if not used & below.keys()]:
        for module in free:
            del below[module]
    assert not below, f"in circles, or above one: {sorted(below)}"


def test_no_module_of_laws_imports_a_higher_one() -> None:
    def floor(module: str) -> int:
        first = module.partition(".")[0]
        if first == "numerics" or first in LOWEST:
            return 0
        return 1 if first == "law" else 3 if first in HIGHEST else 2

    upward = [f"{one} -> {other}" for one, used in arrows().items() for other in used if floor(one) < floor(other)]
    assert not upward


COMPILER = PACKAGE / "compiler"
#: folders of momentgen.compiler from the lowest up; modules beside them stand above all
FOLDERS = (
    "toolchain", "fit", "ir", "function", "exact", "derive", "measure", "strategies", "lower", "certify", "prove",
    "emit",
)  # fmt: skip


def compiler_arrows() -> dict[str, set[str]]:
    """Module of ``momentgen.compiler`` -> those that it imports, and packages of which it imports what they define."""
    paths = {".".join(path.relative_to(COMPILER).with_suffix("").parts): path for path in COMPILER.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        found[module] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                base = (node.module or "").removeprefix("momentgen.compiler.")
                for alias in node.names:
                    name = f"{base}.{alias.name}".removeprefix("momentgen.compiler.")
                    found[module] |= {name if name in paths else base if base in paths else f"{base}.__init__"}
        found[module] &= paths.keys() - {module}
    return found


def test_no_folder_of_the_compiler_imports_a_higher_one() -> None:
    def floor(module: str) -> int:
        first = module.partition(".")[0]
        return FOLDERS.index(first) if first in FOLDERS else len(FOLDERS)

    of = compiler_arrows()
    assert {module.partition(".")[0] for module in of if "." in module} == {*FOLDERS}
    assert not [f"{one} -> {other}" for one, used in of.items() for other in used if floor(one) < floor(other)]


def test_no_modules_of_the_compiler_import_each_other_in_a_circle() -> None:
    below = compiler_arrows()
    while free := [module for module, used in below.items() if not used & below.keys()]:
        for module in free:
            del below[module]
    assert not below, f"in circles, or above one: {sorted(below)}"

"""Lower layers never import higher ones: start-up stays short, and a training process never loads the compiler."""

import ast
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from other_processes import printed

import momentgen

PACKAGE = Path(momentgen.__file__).parent
ROOT = PACKAGE.parent
#: package or single module of momentgen -> the others that it may import
PACKAGES: dict[str, set[str]] = {
    "errors": set(),
    "promise": set(),
    "sign_change": set(),
    "cache": set(),
    "extras": {"errors"},
    "progress": {"extras"},
    "pictures": {"errors", "extras"},
    "native": {"errors"},
    "rule": {"errors"},
    "compiler": {"errors", "sign_change", "native", "rule"},
    "build": {"errors", "cache", "rule", "compiler"},
    "commands": {"errors", "promise", "extras", "progress", "rule", "compiler", "build"},
    "runtime": {"errors", "promise", "cache", "extras", "native", "pictures"},
    "laws": {"errors", "extras", "native", "pictures", "runtime"},
    "nn": {"errors", "extras", "pictures", "progress", "runtime", "laws"},
    "inference": {"errors", "extras", "pictures", "progress", "native", "runtime", "laws", "nn"},
    "__main__": {"extras", "commands"},
}
SYMBOLIC = ("sympy", "mpmath", "flint")
#: package -> libraries that it must not import, at any depth of its code
WITHOUT: dict[str, tuple[str, ...]] = {
    "errors": ("torch", *SYMBOLIC, "numpy"),
    "promise": ("torch", *SYMBOLIC, "numpy"),
    "native": ("torch", *SYMBOLIC),
    "rule": ("torch", "triton"),
    "compiler": ("torch",),
    "build": ("torch",),
    "runtime": SYMBOLIC,
    "laws": SYMBOLIC,
    "nn": SYMBOLIC,
    "inference": SYMBOLIC,
}


@functools.cache
def imports(path: Path, types: bool = False) -> frozenset[str]:
    """All that a module imports, at any depth of its code: modules, and names within them; for types alone if asked."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return frozenset(found)


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in ("generated", "rules")
}


def arrows(types: bool = False) -> dict[str, set[str]]:
    """Module of momentgen -> those of momentgen that it imports.  A package counts only where it is named itself."""
    found = {}
    for module, path in MODULES.items():
        named = imports(path, types)
        known = named & MODULES.keys()
        used = {name for name in known if not any(other.startswith(f"{name}.") for other in known)}
        found[module] = used - {module}
    return found


def package_of(module: str) -> str:
    return [*module.split("."), ""][1]


@pytest.mark.parametrize("name", PACKAGES)
def test_no_package_imports_one_above_it(name: str) -> None:
    upward = [
        f"{module} -> {other}"
        for module, used in arrows().items()
        if package_of(module) == name
        for other in used
        if package_of(other) not in PACKAGES[name] | {name, ""}
    ]
    assert not upward


def test_every_package_has_its_place() -> None:
    assert {package_of(module) for module in MODULES} - {""} == set(PACKAGES)


def circles(below: dict[str, set[str]]) -> set[str]:
    """Modules that import each other, and those that import one of these."""
    while free := [module for module, used in below.items() if not used & below.keys()]:
        for module in free:
            del below[module]
    return {*below}


def test_no_modules_import_each_other_in_a_circle() -> None:
    below = arrows()
    del below["momentgen"]  # its names load on first use
    assert not circles(below)


#: folders whose modules a newcomer can hold: in no circle for types either, no file over 400 lines, no class over 250
SMALL = ("laws.controlled",)


@pytest.mark.parametrize("folder", SMALL)
def test_a_folder_has_small_modules_in_no_circle(folder: str) -> None:
    inside = {one for one in MODULES if one.startswith(f"momentgen.{folder}.")}
    assert not circles({one: used & inside for one, used in arrows(types=True).items() if one in inside})
    for module in inside:
        text = MODULES[module].read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 400, module
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                assert (node.end_lineno or 0) - node.lineno < 250, f"{module}: {node.name}"


@pytest.mark.parametrize("name", WITHOUT)
def test_no_package_imports_a_library_of_another(name: str) -> None:
    wrong = [
        f"{module} imports {found}"
        for module, path in MODULES.items()
        if package_of(module) == name
        for found in imports(path)
        if found.partition(".")[0] in WITHOUT[name]
    ]
    assert not wrong


# mpmath: kernel_scalars computes a parameter's derived numbers with it, once a value.
def test_generated_ops_import_neither_the_compiler_nor_what_it_needs() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "generated").rglob("*.py"))
        for name in imports(path)
        for part in ("sympy", "flint", "momentgen.compiler", "momentgen.rule", "momentgen.commands")
        if name == part or name.startswith(part + ".")
    ]
    assert not wrong


def loaded_by(code: str, beside: str = "") -> set[str]:
    """Modules that the code loads, beside those of other code before it."""
    program = f"{beside}\nimport sys\nbefore = {{*sys.modules}}\n{code}\nprint(*{{*sys.modules}} - before)"
    return set(printed(program).split())


def test_importing_momentgen_is_light() -> None:
    assert not {"torch", "sympy", "numpy", "triton"} & loaded_by("import momentgen")


def test_importing_networks_loads_nothing_heavy_but_torch() -> None:
    heavy = {"torch._dynamo", "torch._inductor", "torch.fx", "triton", "sympy", "mpmath", "flint", "scipy", "sklearn"}
    code = "import momentgen.laws, momentgen.nn\nfrom momentgen.inference import MeanField, elbo, randomise"
    loaded = loaded_by(code, beside="import torch")
    assert "momentgen.inference.posterior" in loaded
    assert not heavy & loaded


def test_an_op_computes_without_the_compiler_or_triton() -> None:
    code = "from momentgen.generated import square\nsquare(torch.ones(2), torch.ones(2))"
    loaded = loaded_by(code, beside="import torch")
    assert "momentgen.runtime.native" in loaded
    assert not {"triton", "flint", "momentgen.rule", "momentgen.compiler"} & loaded


def test_the_compiler_needs_no_torch() -> None:
    assert "torch" not in loaded_by(
        "import momentgen.rule.rule, momentgen.compiler.ir.program, momentgen.compiler.ir.interpreter"
    )


#: parts of momentgen.laws from the lowest up; what is not named here stands between ``law`` and ``rules``
LOWEST = ("table", "notes", "activations")
HIGHEST = (
    "rules", "channels", "weights", "support", "draws", "methods", "border", "convert", "controlled", "budget",
)  # fmt: skip


def upward(package: str, floor: Callable[[str], int]) -> list[str]:
    """Imports of a higher floor in a package, of which ``floor`` says where each part of it stands."""
    drawn = {one: used for one, used in arrows().items() if one.startswith(f"momentgen.{package}.")}
    return [
        f"{one} -> {other}"
        for one, used in drawn.items()
        for other in used & drawn.keys()
        if floor(one.split(".")[2]) < floor(other.split(".")[2])
    ]


def test_no_module_of_laws_imports_a_higher_one() -> None:
    def floor(first: str) -> int:
        if first == "numerics" or first in LOWEST:
            return 0
        return 1 if first == "law" else 3 if first in HIGHEST else 2

    assert not upward("laws", floor)


#: folders of momentgen.compiler from the lowest up; modules beside them stand above all
FOLDERS = (
    "toolchain", "fit", "ir", "function", "exact", "derive", "measure", "strategies", "lower", "certify",
    "emit",
)  # fmt: skip


def test_no_folder_of_the_compiler_imports_a_higher_one() -> None:
    modules = [module.split(".") for module in arrows() if module.startswith("momentgen.compiler.")]
    assert {parts[2] for parts in modules if len(parts) > 3} == {*FOLDERS}
    assert not upward("compiler", lambda folder: FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS))

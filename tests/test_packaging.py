"""What is installed is what is in the repository."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import momentgen

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project() -> dict[str, dict[str, dict[str, object]]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_is_listed(project: dict[str, dict[str, dict[str, list[str]]]]) -> None:
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "momentgen").rglob("*.py")}
    packages = {".".join(folder.parts) for folder in folders} | {"momentgen.rules", "momentgen.generated"}
    assert set(project["tool"]["setuptools"]["packages"]) == packages


def test_pins_lie_within_the_ranges(project: dict[str, dict[str, list[str]]]) -> None:
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    optional = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *optional["dev"], *optional["gpu"], *optional["examples"]]  # type: ignore[call-overload]
    for requirement in map(Requirement, wanted):
        if requirement.name in pins:
            assert requirement.specifier.contains(pins[requirement.name]), requirement
    assert {"sympy", "torch", "triton", "mpmath", "python-flint", "numpy"} <= set(pins)


def test_the_package_is_typed() -> None:
    assert (Path(momentgen.__file__).parent / "py.typed").exists()

"""What is installed is what is in the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import momentgen
from momentgen.extras import SITE

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_wheel_holds_every_module_rule_and_generated_file(tmp_path: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [name for name in tracked.split("\0") if name and (ROOT / name).exists()]
    copy = tmp_path / "copy"
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(copy)]
    subprocess.run(command, check=True, capture_output=True)
    installed = {"momentgen/": "momentgen/", "rules/": "momentgen/rules/", "generated/": "momentgen/generated/"}
    expected = {
        name.replace(top, inside, 1)
        for top, inside in installed.items()
        for name in files
        if name.startswith(top) and name.endswith((".py", ".c", ".json", ".html.j2", "py.typed"))
    }
    held = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    assert {"momentgen/__init__.py", "momentgen/rules/relu.py", "momentgen/generated/__init__.py"} <= expected
    assert {name for name in held if ".dist-info/" not in name} == expected


def test_pins_lie_within_the_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    optional = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *(each for extra in optional.values() for each in extra)]
    for requirement in map(Requirement, wanted):
        if requirement.name in pins:
            assert requirement.specifier.contains(pins[requirement.name]), requirement
    assert {"sympy", "torch", "triton", "mpmath", "python-flint", "numpy"} <= set(pins)


def tracked_texts() -> dict[str, str]:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in tracked.split("\0") if name.endswith((".py", ".md", ".toml", ".yml", ".cff"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths if path.is_file()}


def test_the_addresses_of_the_project_stand_in_two_places_that_agree() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Documentation"] == SITE
    assert urls["Issues"].startswith(urls["Source"] + "/")
    assert urls["Changelog"].startswith(urls["Source"] + "/")
    hosts = [url.removeprefix("https://") for url in (urls["Source"], urls["Documentation"])]
    holders = {name for name, text in tracked_texts().items() for host in hosts if host in text}
    assert holders == {"pyproject.toml", "momentgen/extras.py"}


def test_every_place_that_names_the_version_names_the_same() -> None:
    version = momentgen.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[0] == version


def test_what_is_not_released_fits_on_a_screen() -> None:
    waiting = (ROOT / "CHANGELOG.md").read_text().split("## [Unreleased]\n")[1].split("\n## [")[0].splitlines()
    assert len(waiting) <= 40, "move what users need not know to docs/history.md"


def test_the_package_is_typed() -> None:
    assert (Path(momentgen.__file__).parent / "py.typed").exists()

"""What is installed is what is in the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import momentgen
from momentgen.extras import SITE

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tracked() -> list[str]:
    """The files of the repository; the test is skipped in an unpacked source distribution."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in found.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.slow
def test_the_sources_hold_every_file_and_a_wheel_every_module_rule_and_generated_file(tmp_path: Path) -> None:
    files, copy = tracked(), tmp_path / "copy"
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(copy)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "is absent from the `packages`" not in done.stdout + done.stderr
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in files if not name.startswith(".") or name.startswith((".ci", ".github"))} <= sources
    installed = {"momentgen/": "momentgen/", "rules/": "momentgen/rules/", "generated/": "momentgen/generated/"}
    expected = {
        name.replace(top, inside, 1)
        for top, inside in installed.items()
        for name in files
        if name.startswith(top) and name.endswith((".py", ".c", ".h", ".json", ".css", "py.typed"))
    }
    held = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    assert {"momentgen/__init__.py", "momentgen/rules/relu.py", "momentgen/generated/__init__.py"} <= expected
    assert {name for name in held if ".dist-info/" not in name} == expected


def test_pins_lie_within_the_ranges() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    optional = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(each for extra in optional.values() for each in extra)]
    for requirement in map(Requirement, wanted):
        if requirement.name in pins:
            assert requirement.specifier.contains(pins[requirement.name]), requirement
    assert {"sympy", "torch", "triton", "mpmath", "python-flint", "numpy"} <= set(pins)


def test_the_addresses_of_the_project_stand_in_three_places_that_agree() -> None:
    urls = PROJECT["urls"]
    assert urls["Documentation"] == SITE
    assert urls["Issues"].startswith(urls["Source"] + "/")
    assert urls["Changelog"].startswith(urls["Source"] + "/")
    hosts = [url.removeprefix("https://") for url in (urls["Source"], urls["Documentation"])]
    texts = [name for name in tracked() if name.endswith((".py", ".md", ".toml", ".yml", ".cff"))]
    holders = {name for name in texts for host in hosts if host in (ROOT / name).read_text(encoding="utf-8")}
    assert holders == {"README.md", "pyproject.toml", "momentgen/extras.py"}


def test_a_registry_says_what_readme_says_and_its_links_are_absolute(tmp_path: Path) -> None:
    code = "import sys; from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    found = message_from_string(next(tmp_path.rglob("METADATA")).read_text(encoding="utf-8"))
    text, readme = found.get_payload(), (ROOT / "README.md").read_text(encoding="utf-8")
    purpose = "how uncertain a PyTorch network's output is when its inputs or weights are"
    assert [page for page in (readme, found["Summary"]) if purpose not in page] == []
    links, shown = (re.findall(r"\]\((?!#)([^)]*)\)", page) for page in (readme, text))
    at = rf"{PROJECT['urls']['Source']}/(?:blob|raw)/v{momentgen.__version__}/"
    assert [re.sub(at, "", link) for link in shown] == links
    assert [link for link in shown if not link.startswith("https://")] == []
    assert re.findall(r"!\[[^\]]*\]\((.*)/raw/v", text) == [PROJECT["urls"]["Source"]] * readme.count("![")


def test_a_registry_names_systems_and_pythons_on_which_something_has_run() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").partition("## What has run")[2]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| ")]
    run = " ".join(what for what, how in rows if how.strip())
    kinds = r"^(?:Operating System :: (?:POSIX :: )?|Programming Language :: Python :: )(\w+|3\.\d+)$"
    named = re.findall(kinds, "\n".join(PROJECT["classifiers"]), flags=re.M)
    assert {"Linux", "3.11"} <= set(named)
    assert [name for name in named if name not in run] == []


def test_every_place_that_names_the_version_names_the_same() -> None:
    version = momentgen.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[0] == version


def test_what_is_not_released_fits_on_a_screen() -> None:
    waiting = (ROOT / "CHANGELOG.md").read_text().split("## [Unreleased]\n")[1].split("\n## [")[0].splitlines()
    assert len(waiting) <= 40, "move what users need not know to docs/history.md"


def test_the_package_is_typed() -> None:
    assert (Path(momentgen.__file__).parent / "py.typed").exists()

"""What is installed is what is in the repository."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from other_processes import printed
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import momentgen
from momentgen.extras import EXTRAS, SITE

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


# What works with the base dependencies alone, and what the sentence says where an extra is missing.
def base_distributions() -> set[str]:
    """What ``pip install momentgen`` brings."""
    found: set[str] = set()
    left = list(PROJECT["dependencies"])
    while left:
        needed = Requirement(left.pop())
        name = canonicalize_name(needed.name)
        if name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found.add(name)
            try:
                left += requires(name) or []
            except PackageNotFoundError:  # of another platform's
                continue
    return found


def modules_beyond_the_base() -> list[str]:
    base = base_distributions()
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if module != "momentgen" and not base & set(map(canonicalize_name, owners))
    )


_BLOCK = """
import sys
from importlib.machinery import PathFinder
blocked = set({names!r})
class Base(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else PathFinder.find_spec(name, path, target)
sys.meta_path = [Base if finder is PathFinder else finder for finder in sys.meta_path]
"""


def run_with_the_base_alone(code: str) -> str:
    return printed(_BLOCK.format(names=modules_beyond_the_base()) + code)


def test_the_blocked_modules_are_those_of_the_extras() -> None:
    blocked = set(modules_beyond_the_base())
    assert {"flint", "rich", "typer", "scipy", "sklearn", "matplotlib", "arviz"} <= blocked
    assert not {"torch", "numpy", "platformdirs", "filelock"} & blocked


def test_the_extras_are_those_of_the_project() -> None:
    owners = packages_distributions()
    for extra, modules in EXTRAS.items():
        told = {canonicalize_name(Requirement(line).name) for line in PROJECT["optional-dependencies"][extra]}
        for module in modules:
            assert told & set(map(canonicalize_name, owners[module])), f"{extra} does not bring {module}"


_NETWORKS = """
import momentgen, torch
from momentgen import nn
net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).eval()
x = momentgen.noisy(torch.zeros(2, 4), std=0.1)
print(net(x).std.isfinite().all())
print(nn.Normalize(3)(momentgen.noisy(torch.ones(2, 3), std=0.1)).std.shape)
print(momentgen.monte_carlo(net, x, 50, seed=0))
print(momentgen.summary(net, x, seed=0))
"""
_TRAINING = """
import torch
from torch import nn
from momentgen.inference import DensityFilter, Gaussian, MeanField, Trainer, prune, randomise
torch.manual_seed(0)
x = torch.linspace(-1, 1, 64)[:, None]
net = randomise(nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)), MeanField())
trainer = Trainer(net, Gaussian(1), batch_size=32)
trainer.run(x, x.sin(), 3)
print(len(trainer.history), trainer.history[-1] > trainer.history[0])
print(prune(net, 3.0))
pbp = DensityFilter([1, 8, 1], Gaussian(1))
print(pbp.fit(x[None].double(), x[None, :, 0].sin().double(), 2).shape)
"""


def test_the_readme_networks_their_tables_and_training_run_with_the_base_alone() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    shown = [block for block in blocks if "sklearn" not in block and "Regressor" not in block]
    assert any("convert" in block for block in shown)
    out = run_with_the_base_alone("\nprint('#')\n".join(["\n".join(shown), _NETWORKS, _TRAINING]))
    _, networks, training = out.split("#\n")
    assert networks.startswith("tensor(True)\ntorch.Size([2, 3])")
    assert "MonteCarlo(n=50" in networks
    assert "GELU" in networks
    assert training.startswith("3 True\n")
    assert "pruned" in training
    assert training.endswith("torch.Size([1, 2])\n")


def test_a_missing_extra_is_one_sentence_with_the_line_to_type() -> None:
    cases = [
        ("from momentgen.inference import PBPRegressor", "scipy and sklearn", "estimators"),
        ("from momentgen.progress import progress_bar\nwith progress_bar('x', 1, True): pass", "flint", "compiler"),
        ("from momentgen.extras import require\nrequire('report', 'it')", "matplotlib", "report"),
        ("import momentgen, torch\nmomentgen.Moments(torch.zeros(1), 1.0).plot()", "matplotlib", "plot"),
        ("import momentgen.__main__; momentgen.__main__.main()", "flint", "compiler"),
    ]
    tried = f"""
for code in {[code for code, _, _ in cases]!r}:
    try:
        exec(code, {{}})
        print("ran")
    except (ImportError, SystemExit) as error:
        print(str(error).splitlines()[-1])
"""
    lines = run_with_the_base_alone(tried).splitlines()
    for line, (_, missing, extra) in zip(lines, cases, strict=True):
        assert re.search(rf"needs .*{missing}.*: run `pip install 'momentgen\[{extra}\]'`$", line), line


def test_messages_cite_pages_of_the_site_and_no_files_that_a_wheel_lacks() -> None:
    pages = []
    for path in (ROOT / "momentgen").rglob("*.py"):
        if path.name == "extras.py":
            continue
        text = path.read_text()
        pages += re.findall(r"\{SITE\}/([a-z-]+)/", text)
        for line in text.splitlines():
            strings = re.findall(r"\"[^\"]*docs/[^\"]*\"", line)
            assert not strings or line.lstrip().startswith('"""') or "``" in line, f"{path}: {line}"
    assert pages
    assert all((ROOT / "docs" / f"{page}.md").is_file() for page in pages)

"""What works with the base dependencies alone, and what the sentence says where an extra is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from momentgen.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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
    program = _BLOCK.format(names=modules_beyond_the_base()) + code
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


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

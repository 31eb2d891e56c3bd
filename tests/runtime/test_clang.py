"""Ops that clang compiles have the bits of those that gcc compiles, and no slower path serves them.

Where CI is set, clang must be there: a test that is skipped shows nothing.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from other_processes import environment

import momentgen.generated
from momentgen.runtime import Op

PROGRAM = """
import hashlib, sys, warnings
import torch
import momentgen.generated
from momentgen.runtime import FallbackWarning

warnings.simplefilter("error", FallbackWarning)
torch.manual_seed(5)
n = 20_000
inputs = {"mean": 4 * torch.randn(n).double(), "var": 3 * torch.rand(n).double(), "cov": 0.1 * torch.randn(n).double()}
inputs["mean"][:100] *= 1e-9
inputs["var"][50:200] *= 1e-12
for name in sys.argv[1:]:
    op = getattr(momentgen.generated, name)
    for variant in op.variants:
        for dtype in (torch.float32, torch.float64):
            leaves = []
            for place, input in enumerate(op.input_names):
                leaves.append(inputs[input.rstrip("12")].roll(1000 * place).to(dtype).requires_grad_())
            found = op(*leaves, variant=variant)
            outputs = (found,) if isinstance(found, torch.Tensor) else tuple(found)
            gradients = torch.autograd.grad(sum((k + 1) * output.sum() for k, output in enumerate(outputs)), leaves)
            digest = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in (*outputs, *gradients)))
            print(name, variant, dtype, digest.hexdigest()[:20])
"""
ALL = [name for name in momentgen.generated.__all__ if isinstance(getattr(momentgen.generated, name), Op)]
#: with kinks, of atoms, of polynomials, with parameters, of two inputs; `make slow` has the rest
TYPICAL = ["relu", "gelu", "tanh", "hardtanh", "maximum_correlated"]


def bits_by(compiler: str, cache: Path | None, names: Sequence[str]) -> list[str]:
    """A line for each op, variant and dtype: what its moments and gradients are, compiled by ``compiler`` alone."""
    given = {"CC": compiler, "OMP_NUM_THREADS": "1"} | ({} if cache is None else {"MOMENTGEN_CACHE": str(cache)})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        env=environment(**given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert cache is None or len(list(cache.glob("*.so"))) >= len(names)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def both() -> tuple[str, str]:
    """The commands of gcc and clang."""
    for name in ("gcc", "clang"):
        if shutil.which(name) is None:
            say = pytest.fail if os.environ.get("CI") else pytest.skip
            say(f"{name} is not there: `apt install {name}`")
    return "gcc", "clang"


def check(both: tuple[str, str], folder: Path, names: Sequence[str]) -> None:
    # gcc's may lie compiled by other tests, which call it too unless another compiler is asked for.
    caches = (folder / "gcc" if "CC" in os.environ else None, folder / "clang")
    gcc, clang = (bits_by(compiler, cache, names) for compiler, cache in zip(both, caches, strict=True))
    assert len(gcc) >= 2 * len(names)
    assert clang == gcc


def test_ops_that_clang_compiles_have_the_bits_of_gcc(both: tuple[str, str], tmp_path: Path) -> None:
    check(both, tmp_path, TYPICAL)


@pytest.mark.slow
def test_all_ops_that_clang_compiles_have_the_bits_of_gcc(both: tuple[str, str], tmp_path: Path) -> None:
    check(both, tmp_path, ALL)

"""Results and noisy inputs through ``torch.save`` and ``torch.load`` with its defaults, and through pickle."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributions as td
from torch import nn

import momentgen
from momentgen import noisy


def _loaded(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("name", ["ap1", "ap2", "sample", "local", "controlled"])
def test_results_of_every_method_are_loaded_as_they_were(name: Any) -> None:
    found = momentgen.convert(nn.Linear(3, 2).eval(), name)(noisy(torch.randn(4, 3), std=0.1))
    for again in (_loaded({"out": [found]})["out"][0], pickle.loads(pickle.dumps(found))):
        assert type(again) is type(found)
        for part in ("mean", "var", "std", "std_error", "mean_error", "factor"):
            torch.testing.assert_close(getattr(again, part, None), getattr(found, part, None), rtol=0, atol=0)
        assert again.rows == found.rows


#: noise of x of shape (4, 3): plain, of vectors, mixed, wrapped and transformed
NOISE: dict[str, Any] = {
    "std": {"std": 0.1}, "cov": {"cov": torch.eye(3)}, "Laplace": {"distribution": td.Laplace(0.0, torch.ones(3))},
    "log-normal": {"distribution": td.LogNormal(0.0, 1.0)}, "Weibull": {"distribution": td.Weibull(1.0, 2.0)},
    "normal vector": {"distribution": td.MultivariateNormal(torch.zeros(3), torch.eye(3))},
    "independent": {"distribution": td.Independent(td.Gamma(torch.ones(3), 4.0), 1)},
    "mixture": {"distribution": td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Normal(torch.zeros(2), 1.0))},
}  # fmt: skip


@pytest.mark.parametrize("name", NOISE)
def test_noisy_inputs_are_loaded_with_their_distribution(name: str) -> None:
    given = noisy(torch.randn(4, 3), **NOISE[name])
    again = _loaded(given)
    network = momentgen.convert(nn.Sequential(nn.Linear(3, 4), nn.Tanh()).eval(), "controlled")
    found, expected = network(again), network(given)
    for part in ("mean", "var", "std_error", "mean_error"):
        assert torch.equal(getattr(found, part), getattr(expected, part))


def test_a_new_process_loads_results_and_has_public_modules_as_attributes(tmp_path: Path) -> None:
    torch.save(momentgen.convert(nn.Linear(3, 2).eval())(noisy(torch.randn(4, 3), std=0.1)), tmp_path / "out.pt")
    code = (
        "import torch, momentgen.laws\n"
        f"found = torch.load({str(tmp_path / 'out.pt')!r})\n"
        "assert found.std_error.shape == found.covariance.shape[:2] == (4, 2)\n"
        "names = ['errors', 'inference', 'laws', 'nn', 'runtime']\n"
        "assert all(getattr(momentgen, name).__name__ == f'momentgen.{name}' for name in names)\n"
        "assert set(names) < set(dir(momentgen))\n"
        "assert not hasattr(momentgen, 'nothing')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

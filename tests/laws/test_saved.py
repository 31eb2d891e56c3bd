"""Results and noisy inputs through ``torch.save`` and ``torch.load`` with its defaults, and through pickle."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributions as td
from torch import nn

import momentgen
from momentgen import Moments, noisy, propagate


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


def _of(**noise: Any) -> Moments:
    return noisy(torch.randn(4, 3), **noise)


#: noise: plain, of vectors, mixed, wrapped and transformed; in common, of several values, of a result
NOISE: dict[str, Callable[[], Moments]] = {
    "std": lambda: _of(std=0.1), "cov": lambda: _of(cov=torch.eye(3)),
    "Laplace": lambda: _of(distribution=td.Laplace(0.0, torch.ones(3))),
    "log-normal": lambda: _of(distribution=td.LogNormal(0.0, 1.0)),
    "Weibull": lambda: _of(distribution=td.Weibull(1.0, 2.0)),
    "normal vector": lambda: _of(distribution=td.MultivariateNormal(torch.zeros(3), torch.eye(3))),
    "independent": lambda: _of(distribution=td.Independent(td.Gamma(torch.ones(3), 4.0), 1)),
    "mixture": lambda: _of(
        distribution=td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Normal(torch.zeros(2), 1.0))
    ),
    "one for each value": lambda: noisy([1.0, 2.0], [td.Uniform(0.0, 1.0)] * 2),
    "in common": lambda: noisy(torch.ones(2), std=0.1, shared=True) + 1,
    "one of several": lambda: noisy((1.0, 2.0), cov=[[1.0, 0.5], [0.5, 1.0]])[0],
    "a result": lambda: momentgen.convert(nn.Linear(3, 2).eval())(_of(std=0.1)).detach(),
}  # fmt: skip


@pytest.mark.parametrize("name", NOISE)
def test_noisy_inputs_are_loaded_with_their_distribution(name: str) -> None:
    given = NOISE[name]()
    again = _loaded(given)
    assert type(again) is type(given)
    assert repr(again) == repr(given)
    found, expected = (propagate(torch.tanh, x) for x in (again, given))
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

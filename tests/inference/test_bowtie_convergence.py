"""R̂ and effective sample size against closed forms of autoregressive chains."""

from __future__ import annotations

import torch

from momentgen.inference.bowtie.convergence import effective_size, split_r_hat


def chains(rho: float, count: int = 8, length: int = 20_000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, length, generator=generator, dtype=torch.float64)
    draws = noise.clone()
    for n in range(1, length):
        draws[:, n] = rho * draws[:, n - 1] + (1 - rho**2) ** 0.5 * noise[:, n]
    return draws


def test_the_effective_size_of_autoregressive_chains_is_the_known_one() -> None:
    for rho in (0.0, 0.5, 0.9):
        found = effective_size(chains(rho)[..., None])
        assert abs(found.item() / (160_000 * (1 - rho) / (1 + rho)) - 1) < 0.1


def test_r_hat_is_one_of_chains_that_agree_and_large_of_those_that_do_not() -> None:
    draws = chains(0.0, 4, 2000)
    assert abs(split_r_hat(draws).item() - 1) < 0.01
    apart = draws + torch.arange(4.0, dtype=torch.float64)[:, None]
    # Means 0, 1, 2, 3, each of two halves: variance 10/7 between, 1 within.
    assert abs(split_r_hat(apart).item() - (1 + 10 / 7) ** 0.5) < 0.05
    drifting = draws + torch.linspace(0, 6, 2000, dtype=torch.float64)
    assert split_r_hat(drifting).item() > 1.5
    assert split_r_hat(draws[:, :3]).isnan()
    assert effective_size(draws[:, :3]).isnan()
    for unknown in (torch.nan, torch.inf):
        assert split_r_hat(draws.where(draws < 3, unknown)).isnan()
        assert effective_size(draws.where(draws < 3, unknown)).isnan()

"""What a few probes tell of a layer's variances: factors of those of independent values."""

from __future__ import annotations

import torch

from momentgen.laws.numerics.shrinkage import shrunk


def test_factors_of_correlated_layers_are_found_from_few_samples() -> None:
    """Channels whose variance is twice and half of that of independent values; truth by construction."""
    torch.manual_seed(0)
    truth = torch.where(torch.arange(20) < 10, 2.0, 0.5)
    prior = torch.rand(1, 20, 8, 8) + 0.5
    drawn = (truth[:, None, None] * prior).sqrt() * torch.randn(8, 1, 20, 8, 8)
    found = shrunk(prior, drawn, 1)
    assert ((found / truth[:, None, None]).log().abs() < 0.25).all()
    alike = shrunk(prior, prior.sqrt() * torch.randn(8, 1, 20, 8, 8), 1)
    assert (alike.log().abs() < 0.1).all()


def test_factors_of_units_are_found_where_halves_of_the_samples_agree() -> None:
    """Units of one channel whose variance is a log-normal multiple of that of independent values."""
    torch.manual_seed(0)
    truth = (0.5 * torch.randn(6, 12, 12)).exp()
    prior = torch.rand(1, 6, 12, 12) + 0.5
    drawn = (truth * prior).sqrt() * torch.randn(24, 1, 6, 12, 12)
    found = shrunk(prior, drawn, 1)
    off = (found[0] / truth).log().std()
    assert off < 0.75 * truth.log().std()
    torch.testing.assert_close((found * prior).sum(), drawn.square().mean(0).sum(), rtol=1e-4, atol=0)
    alike = shrunk(prior, prior.sqrt() * torch.randn(24, 1, 6, 12, 12), 1)
    assert (alike.log().abs() < 0.15).all()


def test_a_unit_that_no_sample_moves_keeps_a_share_of_its_variance() -> None:
    """Its randomness may be in events that few samples do not meet."""
    torch.manual_seed(0)
    prior = torch.ones(1, 4, 8, 8)
    drawn = torch.randn(24, 1, 4, 8, 8)
    drawn[:, :, :, 0] *= 1e-3
    found = shrunk(prior, drawn, 1)
    assert (found[:, :, 0] > 0.4).all()
    assert (found[:, :, 1:] < 2).all()


def test_channels_of_next_to_no_variance_leave_the_others_alone() -> None:
    torch.manual_seed(0)
    prior = torch.rand(1, 8, 4, 4)
    prior[:, 0] = 1e-44
    prior[:, 1] = 0
    drawn = prior.sqrt() * torch.randn(8, 1, 8, 4, 4)
    drawn[:, :, 0] = 0
    found = shrunk(prior, drawn, 1)
    assert found.isfinite().all()
    assert (found[:, 2:].log().abs() < 0.3).all()


def test_nothing_to_compare_is_a_factor_of_one() -> None:
    assert torch.equal(shrunk(torch.zeros(5), torch.zeros(8, 5), -1).expand(5), torch.ones(5))

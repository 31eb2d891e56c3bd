"""``summary``: layers from draws, how far ``ap2`` is off, and networks that ``ap2`` cannot run."""

from __future__ import annotations

import pytest
from laws.small_networks import Of, noisy, trained
from torch import nn

import momentgen
from momentgen import Moments

SAMPLES = 4000


@pytest.mark.parametrize("outputs", [1, 10])
def test_summary_has_the_layers_of_draws_and_shows_where_ap2_is_off(outputs: int) -> None:
    net, images = trained(outputs)
    network, x = momentgen.convert(net), Moments(images, 0.01)
    found = momentgen.summary(network, x, SAMPLES, seed=0, progress=False)
    by_default = network(x).std.mean().item()
    assert found.rows[-1].std[1] == pytest.approx(by_default, rel=0.05)
    assert found.rows[0].ratio == pytest.approx(1.0, abs=0.05)
    assert found.rows[-1].ratio < 0.5  # type: ignore[operator]
    assert any("since it takes units as independent" in note for note in found.notes)
    assert f"of {SAMPLES} draws" in str(found)
    by_ap2 = momentgen.summary(momentgen.convert(net, "ap2"), x)
    assert by_ap2.draws == 0
    assert by_ap2.rows[-1].std[1] < 0.5 * by_default


def test_summary_of_a_network_that_ap2_cannot_run_says_why() -> None:
    picks = Of(lambda x: x * (x.argmax(1, keepdim=True) + 1))
    found = momentgen.summary(momentgen.convert(nn.Sequential(nn.Linear(4, 4), picks, nn.ReLU()).eval()), noisy(3, 4))
    assert [row.name for row in found.rows] == ["0", "1", "2"]
    assert all(row.ratio is None for row in found.rows)
    assert any("ap2 does not run" in note and "argmax" in note for note in found.notes)

"""``summary``: layers from draws with their errors, the output by method, and networks that ``ap2`` cannot run."""

from __future__ import annotations

import pytest
import torch
from laws.small_networks import Of, noisy, trained
from torch import nn

import momentgen
from momentgen import Moments
from momentgen.errors import InputError

SAMPLES = 4000


@pytest.mark.parametrize("outputs", [1, 10])
def test_summary_has_the_layers_of_draws_and_shows_where_ap2_is_off(outputs: int) -> None:
    net, images = trained(outputs)
    network, x = momentgen.convert(net), Moments(images, 0.01)
    found = momentgen.summary(network, x, SAMPLES, seed=0, progress=False)
    assert found.default == "controlled"
    by_name = {row.method: row for row in found.methods}
    assert set(by_name) == {"ap2", "controlled"}
    assert 0.95 < by_name["controlled"].ratio < 1.05  # type: ignore[operator]
    assert by_name["controlled"].std_error is not None
    assert by_name["ap2"].ratio < 0.5  # type: ignore[operator]
    assert by_name["ap2"].std_error is None
    assert "controlled (this network's)" in str(found)
    assert any("since it takes units as independent" in note for note in found.notes)
    assert momentgen.summary(network, x, methods=()).methods == ()
    assert momentgen.summary(momentgen.convert(net, "ap2"), x).default == "ap2"
    with pytest.raises(InputError, match="nothing is random"):
        momentgen.summary(network, images)
    with pytest.raises(InputError, match="expected methods of ap2, controlled, got 'magic'"):
        momentgen.summary(network, x, methods=("magic",))


def test_errors_of_layers_in_a_summary_are_those_of_other_draws() -> None:
    net, images = trained(10)
    network, x = momentgen.convert(net), Moments(images, 0.01)
    exact = {row.name: row.std[1] for row in momentgen.summary(network, x, SAMPLES, seed=99, methods=()).rows}
    off = []
    for seed in range(10):
        for row in momentgen.summary(network, x, seed=100 * seed, methods=()).rows:
            assert row.std_error is not None
            off.append((row.std[1] - exact[row.name]) / row.std_error)
    within = torch.tensor(off).abs() < 2.5
    assert within.double().mean() > 0.85
    assert torch.tensor(off).square().mean() > 0.2  # and not far too large either


def test_summary_of_a_network_that_ap2_cannot_run_says_why() -> None:
    picks = Of(lambda x: x * (x.argmax(1, keepdim=True) + 1))
    found = momentgen.summary(momentgen.convert(nn.Sequential(nn.Linear(4, 4), picks, nn.ReLU()).eval()), noisy(3, 4))
    assert [row.name for row in found.rows] == ["0", "1", "2"]
    assert all(row.ratio is None for row in found.rows)
    by_name = {row.method: row for row in found.methods}
    assert "argmax" in by_name["ap2"].problem
    assert by_name["controlled"].std is not None

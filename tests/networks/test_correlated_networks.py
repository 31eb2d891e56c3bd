"""Networks as other people write them run on correlated laws without a change."""

from __future__ import annotations

import pytest
import torch

import momentgen
from momentgen import Moments
from momentgen.errors import InputError
from networks.zoo import BY_NAME, NETWORKS

#: quick ones; the others are marked slow
FEW = ("hf_vit", "hf_resnet_classifier", "timm_resmlp", "gru_classifier")
#: networks whose first dimension is not the example
NOT_BY_EXAMPLE = ("gcn", "bidirectional_lstm")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each.name, marks=() if each.name in FEW else pytest.mark.slow)
        for each in NETWORKS
        if each.name not in NOT_BY_EXAMPLE
    ],
)
def test_correlated_moments_are_finite_and_variances_not_negative(name: str) -> None:
    network = BY_NAME[name]
    plain, mean = network.build(), network.mean()
    with torch.no_grad():
        out = network.call(momentgen.convert(plain, method="correlated"), Moments(mean, network.variance))
    assert isinstance(out, Moments)
    assert out.mean.isfinite().all()
    assert out.var.isfinite().all()
    assert (out.var >= 0).all()


def test_a_network_with_time_in_front_is_refused() -> None:
    network = BY_NAME["bidirectional_lstm"]
    mean = network.mean()
    with pytest.raises(InputError, match="batch in dimension 0"):
        network.call(momentgen.convert(network.build(), method="correlated"), Moments(mean, network.variance))

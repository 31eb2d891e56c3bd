"""Networks built by hypothesis: no negative variance, NaN or infinity, forward or in gradients."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import momentgen
import momentgen.generated
from momentgen import Moments, nn
from momentgen.nn import functional

ACTIVATIONS = sorted({row.layer for row in momentgen.laws.ACTIVATIONS} & nn.LAYERS.keys())
ARGUMENTS = {"Threshold": {"threshold": 0.1, "value": 20.0}}  # what torch has no default for


MAX_POOLS = ["max"] if "maximum" in momentgen.generated.__all__ else []


class Beside(nn.Module):
    """An input and what a network makes of it, added or side by side."""

    def __init__(self, inner: torch.nn.Module, adds: bool) -> None:
        super().__init__()
        self.inner, self.adds = inner, adds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x) if self.adds else torch.cat([x, self.inner(x)], dim=1)


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Sequential, int]:
    """A convolutional network for inputs of 8 × 8, and its number of input channels."""
    channels = first = draw(st.integers(1, 3))
    size, layers = 8, []
    for _ in range(draw(st.integers(1, 6))):
        kinds = ["conv", "normalised", "activation", "norm", "dropout", "residual", "concatenated", "noise", "prelu"]
        kind = draw(st.sampled_from(kinds + (["avg", "upsample", *MAX_POOLS] if 2 <= size <= 8 else [])))
        if kind == "conv":
            wanted = draw(st.integers(1, 4))
            layers.append(nn.Conv2d(channels, wanted, 3, padding=1, bias=draw(st.booleans())))
            channels = wanted
        elif kind == "normalised":
            wanted = draw(st.integers(1, 4))
            layers += [nn.Conv2d(channels, wanted, 3, padding=1, bias=draw(st.booleans())), nn.Normalize(wanted)]
            torch.nn.init.constant_(layers[-1].running_var, draw(st.sampled_from([0.0, 1e-3, 1.0, 1e6])))
            channels = wanted
        elif kind == "activation":
            name = draw(st.sampled_from(ACTIVATIONS))
            layers.append(getattr(nn, name)(**ARGUMENTS.get(name, {})))
        elif kind == "norm":
            layers.append(
                draw(
                    st.sampled_from([nn.BatchNorm2d(channels), nn.GroupNorm(1, channels), nn.InstanceNorm2d(channels)])
                )
                if size > 1
                else nn.Identity()
            )
        elif kind == "dropout":
            layers.append(
                draw(st.sampled_from([nn.Dropout(0.3), nn.Dropout2d(0.9), nn.AlphaDropout(0.1), nn.Dropout(1.0)]))
            )
        elif kind == "residual":
            layers.append(Beside(nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.LeakyReLU()), True))
        elif kind == "concatenated" and channels < 8:
            layers.append(Beside(nn.Conv2d(channels, channels, 1), False))
            channels *= 2
        elif kind == "noise":
            layers.append(draw(st.sampled_from([nn.InjectedNoise(0.5), nn.LogisticBernoulli()])))
        elif kind == "prelu":
            layers.append(nn.PReLU(init=draw(st.sampled_from([-1.0, 0.25, 2.0]))))
        elif kind == "avg":
            layers.append(nn.AvgPool2d(2, ceil_mode=draw(st.booleans())))
            size //= 2
        elif kind == "max":
            layers.append(
                draw(st.sampled_from([nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AdaptiveMaxPool2d(size // 2)]))
            )
            size //= 2
        elif kind == "upsample" and size <= 4:
            layers.append(nn.Upsample(scale_factor=2, mode=draw(st.sampled_from(["nearest", "bilinear"]))))
            size *= 2
    layers += [nn.Flatten(), nn.Linear(channels * size * size, 3)]
    return nn.Sequential(*layers).train(draw(st.booleans())), first


@st.composite
def inputs(draw: st.DrawFn, channels: int) -> Moments | torch.Tensor:
    """Means and variances of all sizes that no layer takes out of float32, exact zeros among them."""
    mean_scale = draw(st.sampled_from([0.0, 1e-20, 1e-3, 1.0, 1e4, 1e8]))
    var_scale = draw(st.sampled_from([0.0, 1e-30, 1e-12, 1e-3, 1.0, 1e6, 1e16]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    shape = (3, channels, 8, 8)
    mean = torch.randn(shape, generator=generator) * mean_scale
    if draw(st.integers(0, 9)) == 0:
        return mean
    if draw(st.integers(0, 4)) == 0:
        return Moments(mean, torch.tensor(var_scale).expand(shape))
    var = torch.rand(shape, generator=generator) * var_scale
    return Moments(mean, torch.where(torch.rand(shape, generator=generator) < 0.3, 0, var))


def check(data: st.DataObject, method: Any) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    net, channels = data.draw(networks())
    x = data.draw(inputs(channels))
    if method == "controlled":
        net.eval()
        # Derivatives by variances of 1e-30 are beyond float32.
        assume(not isinstance(x, Moments) or not ((x.var > 0) & (x.var < 2e-30)).any())
    leaves = [part.clone().requires_grad_() for part in (x if isinstance(x, Moments) else [x])]
    with momentgen.method(method):
        out = net(Moments(*leaves) if isinstance(x, Moments) else leaves[0])
    assert torch.isfinite(out.mean).all(), net
    assert torch.isfinite(out.var).all(), net
    assert (out.var >= 0).all(), net
    loss = functional.nll_loss(out, torch.tensor([0, 1, 2]))
    assert torch.isfinite(loss), net
    loss.backward()
    for name, value in [*net.named_parameters(), *zip(("mean", "var"), leaves, strict=False)]:
        assert value.grad is None or torch.isfinite(value.grad).all(), (name, net)


quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.parametrize("method", ["ap2", "controlled"])
@settings(max_examples=60, suppress_health_check=quiet)
@given(st.data())
def test_random_networks_stay_finite_and_not_negative(method, data):
    check(data, method)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=quiet)
@given(st.data())
def test_a_thousand_random_networks_stay_finite_and_not_negative(data):
    check(data, "ap2")


def test_sampled_networks_stay_finite_where_a_variance_is_zero():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    var = torch.zeros(2, 3, requires_grad=True)
    with momentgen.method("sample"):
        net(Moments(torch.zeros(2, 3), var)).mean.sum().backward()
    assert var.grad is None or torch.isfinite(var.grad).all()

"""What a user can get wrong says so."""

from __future__ import annotations

import pytest
import torch

import momentgen
from momentgen import Moments, nn
from momentgen.errors import InputError
from momentgen.nn import functional

ZERO = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Moments(ZERO, torch.zeros(2, 4)), r"one shape and device, got \(2, 3\) on cpu and \(2, 4\)"),
        (Moments(ZERO, ZERO.double()), "one floating-point dtype, got torch.float32 and torch.float64"),
        (Moments(ZERO.long(), ZERO.long()), "floating-point"),
        (Moments(ZERO, ZERO - 1), "must not be negative, got -1"),
        (Moments(ZERO, torch.tensor([[0.0, 1.0, -1e-30]]).expand(2, 3)), "must not be negative, got -1e-30"),
        ("x", "expected a tensor or Moments, got str"),
        ((ZERO, ZERO), "got tuple of 2"),
        ((*Moments(ZERO, ZERO), *Moments(ZERO, ZERO)), "got tuple of 4"),
    ],
)
def test_bad_moments_are_refused_with_what_came(value, message):
    for layer in (nn.Linear(3, 2), nn.ReLU(), nn.Dropout()):
        with pytest.raises(InputError, match=message):
            layer(value)


@pytest.mark.parametrize(
    ("join", "message"),
    [
        (lambda x: x + x, "Moments \\+ Moments: .*what noise they share.*momentgen.propagate"),
        (lambda x: sum([x, x]), "Moments \\+ Moments: .*momentgen.propagate"),
        (lambda x: (ZERO,) + x, "tuple \\+ Moments: .*momentgen.propagate"),  # noqa: RUF005
        (lambda x: x * x, "Moments \\* Moments: .*momentgen.propagate"),
        (torch.compile(lambda x: x + x, backend="eager"), "what noise they share"),
    ],
)
def test_moments_are_not_joined_or_repeated_as_tuples(join, message):
    with pytest.raises(InputError, match=message):
        join(Moments(ZERO, ZERO))


X = Moments(ZERO, ZERO + 1)
STATISTICS = "conv2d: expected|Linear: 3 input features|Normalize: expected"
REFUSED = {
    "Linear": (lambda: nn.Linear(4, 2)(X), r"expected \(..., 4\), got \(2, 3\)"),
    "Conv2d": (lambda: nn.Conv2d(3, 2, 1)(X), r"conv2d: expected 3 channels and 2 dimensions of space, .* \(2, 3\)"),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4)(X), r"expected 4 channels"),
    "LayerNorm": (lambda: nn.LayerNorm(4)(X), r"layer_norm: expected"),
    "Normalize": (lambda: nn.Normalize(4)(X), r"Normalize: expected 4 channels"),
    **{
        f"statistics of other channels, {layer}": (
            lambda layer=layer: nn.propagate_statistics(layer, torch.zeros(2), torch.ones(2)), STATISTICS
        )
        for layer in (nn.Conv2d(3, 2, 1), nn.Conv2d(4, 2, 1, groups=2), nn.Linear(3, 2), nn.Normalize(3))
    },
    "noise of 0": (lambda: functional.gaussian_nll_loss(X, ZERO, 0), "must be positive, got 0"),
    "a target": (lambda: functional.gaussian_nll_loss(X, ZERO[0], 1.0), r"output \(2, 3\) and target \(3,\) differ"),
    "an approximation": (
        lambda: functional.log_class_posterior(X, approximation="exact"),
        "expected one of logistic, normal, simplified, quadrature",
    ),
    "a variant": (
        lambda: nn.set_variant(nn.Sequential(nn.ReLU()), "best"), "no activation of Sequential has a variant 'best'"
    ),
    "one sample": (lambda: momentgen.monte_carlo(nn.ReLU(), ZERO, 1), "n of at least 2, got 1"),
    "hardtanh": (lambda: nn.Hardtanh(0.5, 2.0)(X), r"hardtanh: parameter min_val must be in \[-64, 0\], got 0.5"),
    "softplus": (
        lambda: nn.Softplus(threshold=5)(X),
        r"Softplus: expected threshold >= 20, where the rule 'softplus' holds, got 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name_with_what_came(name):
    call, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_modules_in_other_precisions_stay_in_theirs_and_moments_of_half_precision_are_float32(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )
    nn.set_method(net, "ap2")
    x = torch.randn(2, 1, 6, 6)
    wanted = net.eval()(Moments(x, torch.full_like(x, 0.1)))
    found = net.to(dtype)(Moments(x.to(dtype), torch.full_like(x, 0.1, dtype=dtype)))
    tolerance = 40 * torch.finfo(dtype).eps if dtype is not torch.float64 else 1e-5
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        torch.testing.assert_close(got.float(), want, rtol=tolerance, atol=tolerance)


def test_a_module_in_another_precision_than_its_input_says_so():
    with pytest.raises(InputError, match="same dtype"):
        nn.Linear(3, 2).double()(Moments(ZERO, ZERO + 1))


def test_names_can_be_imported_from_functional() -> None:
    from momentgen.nn.functional import class_posterior, softmax

    assert class_posterior(torch.zeros(1, 2)).tolist() == [[0.5, 0.5]]
    assert softmax(torch.zeros(1, 2), -1).mean.tolist() == [[0.5, 0.5]]
    with pytest.raises(AttributeError, match="no attribute 'no_such_function'"):
        momentgen.nn.functional.no_such_function  # noqa: B018

"""Layers whose rule is exact, against a million samples: within 4 standard errors in mean and variance."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import momentgen
import momentgen.generated
from momentgen import Moments, nn
from momentgen.errors import InputError
from momentgen.laws.numerics.root import root_of
from momentgen.laws.values import as_moments
from momentgen.nn import functional

N = 1_000_000
CHUNK = 50_000

# What exists of the table: rules arrive one by one.
RULES = set(momentgen.generated.__all__)


def moments_of_samples(plain: Callable[..., Tensor], inputs: list[Moments], n: int = N) -> tuple[Moments, Moments]:
    """Mean and variance of ``plain`` on ``n`` draws, and the standard errors of both."""
    draw = torch.Generator().manual_seed(7)
    total: Tensor | None = None
    shift = plain(*[x.mean[:1] for x in inputs]).double()
    for _ in range(n // CHUNK):
        samples = [x.mean + x.var.sqrt() * torch.randn(CHUNK, *x.mean.shape[1:], generator=draw) for x in inputs]
        out = plain(*samples).double() - shift
        square = out * out
        powers = torch.stack([out.mean(0), square.mean(0), (square * out).mean(0), (square * square).mean(0)])
        total = powers if total is None else total + powers
    assert total is not None
    m1, m2, m3, m4 = total / (n // CHUNK)
    var = m2 - m1**2
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    return Moments(m1 + shift[0], var), Moments((var / n).sqrt(), ((fourth - var**2).clamp_min(0) / n).sqrt())


def plain(layer: torch.nn.Module) -> Callable[..., Tensor]:
    """What the layer computes of certain values."""

    def run(*values: Tensor) -> Tensor:
        with momentgen.method("ap1"):
            return layer(*values).mean

    return run


def drawn(layer: torch.nn.Module) -> Callable[..., Tensor]:
    """What the layer computes with its own noise drawn."""

    def run(*values: Tensor) -> Tensor:
        with momentgen.method("sample"):
            return layer(*values).mean

    return run


def assert_agrees(layer: Callable[..., Moments], plain: Callable[..., Tensor], *inputs: Moments) -> None:
    found = layer(*inputs)
    truth, error = moments_of_samples(plain, list(inputs))
    for what in ("mean", "var"):
        got, want, se = (getattr(part, what).double() for part in (found, truth, error))
        z = ((got - want).abs() - 1e-9) / se.clamp_min(1e-12)
        assert z.max() < 4, f"{what}: {z.max().item():.2f} standard errors"


def normal_input(*shape: int, seed: int = 0) -> Moments:
    draw = torch.Generator().manual_seed(seed)
    return Moments(
        torch.randn(1, *shape, generator=draw, dtype=torch.float64),
        torch.rand(1, *shape, generator=draw, dtype=torch.float64) + 0.05,
    )


def spread_batch_norm(training: bool) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(3).double().train(training)
    with torch.no_grad():
        for values in (layer.running_mean, layer.weight, layer.bias):
            values.copy_(torch.tensor([0.3, -1.0, 2.0]))
        layer.running_var.copy_(torch.tensor([0.5, 2.0, 1.5]))
    return layer


AFFINE = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "conv2d, strided, padded, in groups": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), (2, 5, 5)),
    "conv1d, dilated": (lambda: nn.Conv1d(2, 3, 2, dilation=2), (2, 6)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    "transposed conv1d": (lambda: nn.ConvTranspose1d(2, 3, 2), (2, 3)),
    "transposed conv2d": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1), (2, 3, 3)),
    "transposed conv3d": (lambda: nn.ConvTranspose3d(1, 2, 2), (1, 2, 2, 2)),
    "batch norm, evaluated": (lambda: spread_batch_norm(False), (3, 2, 2)),
    "average pool": (lambda: nn.AvgPool2d(2), (1, 4, 4)),
    "padded, padding counted": (lambda: nn.AvgPool2d(3, 2, padding=1), (1, 5, 5)),
    "padded, padding not counted": (lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), (1, 5, 5)),
    "ceil mode": (lambda: nn.AvgPool1d(3, 2, ceil_mode=True), (2, 6)),
    "ceil mode, padded": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True), (1, 6, 4)),
    "own divisor": (lambda: nn.AvgPool2d(2, divisor_override=3), (1, 4, 4)),
    "average pool, 3d": (lambda: nn.AvgPool3d(2), (1, 2, 4, 2)),
    "power-average pool, norm 1": (lambda: nn.LPPool2d(1, 2), (1, 4, 5)),
    "power-average pool, norm 1, ceil mode": (lambda: nn.LPPool1d(1, 3, 2, ceil_mode=True), (2, 6)),
    "power-average pool, norm 1, 3d": (lambda: nn.LPPool3d(1, 2), (1, 2, 4, 2)),
    "adaptive average pool, uneven": (lambda: nn.AdaptiveAvgPool2d((2, 3)), (1, 5, 4)),
    "adaptive average pool, 1d": (lambda: nn.AdaptiveAvgPool1d(2), (1, 5)),
    "adaptive average pool, 3d": (lambda: nn.AdaptiveAvgPool3d((1, None, 2)), (1, 2, 3, 3)),
    "bilinear upsampling": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 3, 2)),
    "bilinear, corners": (lambda: nn.Upsample((5, 4), mode="bilinear", align_corners=True), (1, 3, 2)),
    "bicubic upsampling": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (1, 3, 3)),
    "trilinear upsampling": (lambda: nn.Upsample(scale_factor=1.5, mode="trilinear"), (1, 2, 3, 2)),
    "linear upsampling": (lambda: nn.Upsample(7, mode="linear"), (1, 3)),
    "nearest upsampling": (lambda: nn.Upsample(scale_factor=2), (1, 3, 2)),
    "padding by a constant": (lambda: nn.ConstantPad1d((1, 2), 3.0), (1, 3)),
    "padding by reflection": (lambda: nn.ReflectionPad1d(1), (1, 3)),
    "flatten": (lambda: nn.Flatten(), (2, 3)),
    "unfold": (lambda: nn.Unfold(2), (2, 3, 3)),
    "fold": (lambda: nn.Fold((3, 3), 2), (4, 4)),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), (4, 2, 2)),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_layers_have_the_moments_of_their_jacobian(name):
    make, shape = AFFINE[name]
    torch.manual_seed(3)
    layer = make().double()
    x = normal_input(*shape)
    with torch.no_grad():
        found = layer(x)
        jacobian = torch.func.jacfwd(lambda value: plain(layer)(value)[0])(x.mean)
        wanted = jacobian.square().flatten(-x.mean.dim()) @ x.var.flatten()
    assert torch.equal(found.mean, plain(layer)(x.mean))
    torch.testing.assert_close(found.var, wanted.view_as(found.var), rtol=1e-12, atol=1e-15)


EXACT = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "batch norm, evaluated": (lambda: spread_batch_norm(False), (3, 2, 1)),
    "average pool": (lambda: nn.AvgPool1d(2), (1, 4)),
    "average pool, padding not counted": (lambda: nn.AvgPool1d(3, 2, 1, count_include_pad=False), (1, 5)),
    "dropout": (lambda: nn.Dropout(0.3), (4,)),
    "dropout of channels": (lambda: nn.Dropout2d(0.3), (2, 2, 1)),
    "alpha dropout": (lambda: nn.AlphaDropout(0.3), (4,)),
    "prelu, slope 0.25": (lambda: nn.PReLU(), (4,)),
    "prelu, slope -1": (lambda: nn.PReLU(init=-1.0), (4,)),
    "rrelu, training": (lambda: nn.RReLU(), (4,)),
    "power-average pool, norm 1": (lambda: nn.LPPool1d(1, 2), (1, 4)),
    "glu": (lambda: nn.GLU(), (4,)),
    "injected normal noise": (lambda: nn.InjectedNoise(0.4, 0.1), (3,)),
    "injected logistic noise": (lambda: nn.InjectedNoise(0.4, 0.1, "logistic"), (3,)),
    "logistic Bernoulli": (lambda: nn.LogisticBernoulli(), (4,)),
    "bow tie": (lambda: nn.BowTie(0.5, 0.3), (4,)),
    "bow tie, cold and without noise": (lambda: nn.BowTie(0.01), (4,)),
}


@pytest.mark.parametrize("name", EXACT)
def test_moments_are_those_of_a_million_samples(name):
    make, shape = EXACT[name]
    torch.manual_seed(3)
    layer = make().double()
    if "evaluated" not in name:
        layer.train()
    with torch.no_grad():
        assert_agrees(layer, drawn(layer), normal_input(*shape))


ACTIVATIONS = [row for row in momentgen.laws.ACTIVATIONS if row.op in RULES]


ARGUMENTS = {"Threshold": (0.1, 20.0)}  # what torch has no default for


@pytest.mark.parametrize("row", ACTIVATIONS, ids=lambda row: row.layer)
def test_activations_are_those_of_a_million_samples(row):
    layer = getattr(nn, row.layer)(*ARGUMENTS.get(row.layer, ()))
    with torch.no_grad():
        assert_agrees(layer, plain(layer), normal_input(6))


PARAMETERS = [
    ("ELU", {"alpha": 0.5}),
    ("ELU", {"alpha": 2.5}),
    ("CELU", {"alpha": 0.3}),
    ("Hardtanh", {"min_val": -2.0, "max_val": 3.0}),
    ("Hardtanh", {"min_val": 0.0, "max_val": 0.25}),
    ("Softplus", {"beta": 2.0}),
    ("Softplus", {"beta": 0.25, "threshold": 30.0}),
    ("Softshrink", {"lambd": 1.25}),
    ("Hardshrink", {"lambd": 0.125}),
    ("Threshold", {"threshold": 0.0, "value": -1.0}),
    ("Threshold", {"threshold": -0.5, "value": 3.0}),
]


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS, ids=str)
def test_activations_of_other_parameters_are_those_of_a_million_samples(name, parameters):
    layer = getattr(nn, name)(**parameters)
    with torch.no_grad():
        assert_agrees(layer, plain(layer), normal_input(6))


@pytest.mark.parametrize("layer", [nn.MaxPool1d(2), nn.MaxPool1d(3, 2, 1), nn.AdaptiveMaxPool1d(3)], ids=repr)
def test_max_pools_are_those_of_a_million_samples(layer):
    with torch.no_grad():
        assert_agrees(layer, plain(layer), normal_input(1, 6))


def test_max_pools_of_certain_inputs_are_torchs():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 7, 6, generator=draw)
    for ours, torchs in ((nn.MaxPool2d(3, 2, 1), torch.nn.MaxPool2d(3, 2, 1)),):
        assert torch.equal(ours(x).mean, torchs(x))


@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"dilation": 2}, {"ceil_mode": True}, {"stride": 1}], ids=str)
def test_windows_of_max_pools_are_torchs(options, monkeypatch):
    # A plain maximum in place of the rule: windows, padding and dilation must be torch's.
    from momentgen.laws.numerics import maximum

    def larger(mean: Tensor, var: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        outside = table < 0
        windows = torch.where(outside, -torch.inf, mean[:, table])
        return windows.amax(-1), torch.where(outside, 0, var[:, table]).amax(-1)

    monkeypatch.setattr(maximum, "maximum_of_windows", larger)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, 8, 7, generator=draw) - 5
    layer = nn.MaxPool2d(3, **options)
    found = layer(Moments(x, torch.full_like(x, 0.1)))
    assert torch.equal(found.mean, torch.nn.MaxPool2d(3, **options)(x))
    assert torch.equal(found.var, torch.full_like(found.mean, 0.1))
    adaptive = nn.AdaptiveMaxPool2d((3, 4))(Moments(x, torch.full_like(x, 0.1)))
    assert torch.equal(adaptive.mean, torch.nn.AdaptiveMaxPool2d((3, 4))(x))


PAIRS = {
    "residual add": (functional.add, torch.add, (4,), (4,)),
    "difference": (functional.sub, torch.sub, (4,), (4,)),
    "product": (functional.mul, torch.mul, (4,), (4,)),
    "matmul": (functional.matmul, torch.matmul, (2, 3), (3, 2)),
    "cat": (lambda x, y: functional.cat([x, y], 1), lambda x, y: torch.cat([x, y], 1), (2,), (3,)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_arithmetic_of_independent_values_is_that_of_a_million_samples(name):
    ours, plain, first, second = PAIRS[name]
    assert_agrees(ours, plain, normal_input(*first, seed=1), normal_input(*second, seed=2))


def test_bilinear_is_that_of_a_million_samples():
    torch.manual_seed(0)
    layer = nn.Bilinear(3, 2, 4).double()
    with torch.no_grad():
        assert_agrees(layer, plain(layer), normal_input(3, seed=1), normal_input(2, seed=2))


def test_a_value_met_with_itself_is_not_taken_as_two():
    x = normal_input(4)
    assert_agrees(lambda x: functional.add(x, x), lambda x: x + x, x)
    assert_agrees(lambda x: functional.mul(x, x), lambda x: x * x, x)
    assert functional.sub(x, x).var.abs().max() == 0


def test_a_constant_variance_is_multiplied_once_and_gives_the_same():
    torch.manual_seed(0)
    x = torch.randn(6, 3, 5, 5)
    expanded = Moments(x, torch.tensor(0.3).expand_as(x))
    full = Moments(x, torch.full_like(x, 0.3))
    for layer in (
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ConvTranspose2d(3, 4, 3),
        spread_batch_norm(False),
        nn.Normalize(3),
    ):
        layer.float()
        torch.testing.assert_close(layer(expanded).var, layer(full).var)
    linear = nn.Linear(5, 7)
    torch.testing.assert_close(linear(expanded).var, linear(full).var)
    per_input = Moments(x, torch.rand(6, 3, 5, 1).expand_as(x))
    torch.testing.assert_close(linear(per_input).var, linear(Moments(x, per_input.var.contiguous())).var)


def test_batch_statistics_of_a_random_input_are_those_of_the_pooled_samples():
    torch.manual_seed(0)
    x = Moments(torch.randn(16, 3, 4, 4).double() * 2 + 1, torch.rand(16, 3, 4, 4).double())
    layer = nn.BatchNorm2d(3, momentum=1.0).double().train()
    found = layer(x)
    samples = x.mean + x.var.sqrt() * torch.randn(1000, *x.mean.shape, dtype=torch.float64)
    pooled = samples.transpose(0, 2).flatten(1)
    n = pooled.shape[1]
    mean, var = pooled.mean(1), pooled.var(1)
    fourth = (pooled - mean[:, None]).pow(4).mean(1)
    kept = 16 * 16
    wanted = x.mean.var(dim=(0, 2, 3)) + x.var.mean(dim=(0, 2, 3))
    assert ((layer.running_mean - mean).abs() < 4 * (var / n).sqrt()).all()
    torch.testing.assert_close(layer.running_var, wanted)  # unbiased, as torch keeps it
    biased = wanted - x.mean.var(dim=(0, 2, 3)) / kept
    assert ((biased - var).abs() < 4 * ((fourth - var**2) / n).sqrt()).all()
    scale = (biased + layer.eps).view(1, -1, 1, 1)
    torch.testing.assert_close(found.mean, (x.mean - layer.running_mean.view(1, -1, 1, 1)) / scale.sqrt())
    torch.testing.assert_close(found.var, x.var / scale)


NORMS = [nn.LayerNorm(64), nn.GroupNorm(2, 64), nn.RMSNorm(64), nn.GroupNorm(1, 64)]


@pytest.mark.parametrize("layer", NORMS, ids=repr)
def test_approximate_norms_are_near_samples(layer):
    # Statistics of n values at their expectations: errors of order 1/n, here 64 and 32 values.
    x = normal_input(64)
    layer = layer.double()
    with torch.no_grad():
        truth, _ = moments_of_samples(plain(layer), [x], 100_000)
        found = layer(x)
    assert ((found.mean - truth.mean).abs() / truth.var.sqrt()).max() < 0.1
    assert (found.var / truth.var).log().abs().max() < 0.2


def test_certain_inputs_give_torchs_own_output_bit_for_bit():
    torch.manual_seed(0)
    x = torch.randn(4, 6, 5)
    for layer, twin in (
        (nn.LayerNorm(5), torch.nn.LayerNorm(5)),
        (nn.GroupNorm(3, 6), torch.nn.GroupNorm(3, 6)),
        (nn.InstanceNorm1d(6), torch.nn.InstanceNorm1d(6)),
        (nn.BatchNorm1d(6), torch.nn.BatchNorm1d(6)),
        (nn.ReLU(inplace=True), torch.nn.ReLU()),
    ):
        assert torch.equal(layer(x).mean, twin(x))
        assert as_moments("test", layer(x)).var.abs().max() == 0


@pytest.mark.parametrize("method", ["ap2", "sample"])
def test_embedding_is_certain(method):
    layer = nn.Embedding(5, 3)
    with momentgen.method(method):
        found = layer(torch.tensor([1, 4]))
    assert torch.equal(found.mean, layer.weight[[1, 4]])
    assert found.var.abs().max() == 0


def test_the_root_of_a_sum_of_squares_is_that_of_a_gamma_variable():
    with mpmath.workdps(60):
        for shape in (0.5, 1.0, 3.7, 15.9, 16.1, 1e3, 1e8, 1e14):
            share = (mpmath.gammaprod([shape + 0.5], [shape])) ** 2 / shape
            mean, var = root_of(torch.tensor(3.0, dtype=torch.float64), torch.tensor(9 / shape, dtype=torch.float64))
            assert abs(mean.item() / mpmath.sqrt(3 * share) - 1) < 1e-12
            assert abs(var.item() / (3 * (1 - share)) - 1) < 1e-10
    mean, var = root_of(*torch.zeros(2, 1, dtype=torch.float64))
    assert mean == 0
    assert var == 0


def test_power_average_pools_of_norm_2_are_near_samples():
    # Exact for inputs of mean 0 and one variance; elsewhere by two moments of the sum of squares.
    layer = nn.LPPool1d(2, 4).double()
    with torch.no_grad():
        assert_agrees(layer, plain(layer), Moments(torch.zeros(1, 1, 8).double(), torch.full((1, 1, 8), 0.7).double()))
        x = normal_input(1, 64)
        truth, _ = moments_of_samples(plain(layer), [x], 400_000)
        found = layer(x)
    assert ((found.mean - truth.mean).abs() / truth.var.sqrt()).max() < 0.02
    assert (found.var / truth.var).log().abs().max() < 0.1


def test_power_average_pools_stay_finite():
    mean = torch.tensor([[[0.0, 0.0, 1e-20, 0.0, 1e15, -1e15, 3.0, 0.0]]], requires_grad=True)
    var = torch.tensor([[[0.0, 0.0, 0.0, 1e-38, 0.0, 1.0, 1e20, 0.0]]], requires_grad=True)
    out = nn.LPPool1d(2, 2)(Moments(mean, var))
    (out.mean.sum() + out.var.sum()).backward()
    for part in (*out, mean.grad, var.grad):
        assert torch.isfinite(part).all()
    assert (out.var >= 0).all()


def test_power_averages_of_other_norms_are_refused():
    x = normal_input(1, 4)
    with pytest.raises(InputError, match=r"lp_pool1d: a rule for the norms 1 and 2 only, got norm_type=3"):
        nn.LPPool1d(3, 2)(x)
    certain = x.mean.abs()
    assert torch.equal(nn.LPPool1d(3, 2)(certain).mean, torch.nn.LPPool1d(3, 2)(certain))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_are_certain(mode):
    layer = nn.EmbeddingBag(6, 3, mode=mode)
    indices, offsets = torch.tensor([1, 4, 0, 5, 1]), torch.tensor([0, 2])
    found = layer(indices, offsets)
    assert torch.equal(found.mean, torch.nn.EmbeddingBag.forward(layer, indices, offsets))
    assert found.var.abs().max() == 0


def test_a_bag_with_random_weights_is_a_random_sum():
    layer = nn.EmbeddingBag(6, 3, mode="sum", padding_idx=5).double()
    indices = torch.tensor([[1, 4, 5], [0, 1, 1]])
    weights = Moments(normal_input(2, 3).mean[0], normal_input(2, 3).var[0])
    found = layer(indices, per_sample_weights=weights)
    rows = layer.weight[indices] * (indices != 5)[..., None]
    torch.testing.assert_close(found.mean, (weights.mean[..., None] * rows).sum(1))
    # A row met twice with two weights: the weights are independent, so squares add up.
    torch.testing.assert_close(found.var, (weights.var[..., None] * rows.square()).sum(1))
    with momentgen.method("ap1"):
        assert torch.equal(layer(indices, per_sample_weights=weights).mean, found.mean)
    with momentgen.method("sample"):
        assert not torch.equal(layer(indices, per_sample_weights=weights).mean, found.mean)


def test_one_variance_for_all_inputs_costs_a_linear_map_no_second_product() -> None:
    layer, x = torch.nn.Linear(8, 4), torch.randn(5, 8)
    flops = {}
    for name, var in (("one", torch.tensor(0.1).expand_as(x)), ("each", torch.full_like(x, 0.1))):
        with FlopCounterMode(display=False) as counter:
            found = momentgen.convert(layer, "ap2")(Moments(x, var))
        flops[name] = counter.get_total_flops()
        torch.testing.assert_close(found.var, 0.1 * layer.weight.square().sum(1).expand(5, 4))
    assert flops == {"one": 2 * 5 * 8 * 4, "each": 4 * 5 * 8 * 4}

"""Layers of torch.nn behind the border have torch's bits; those of our own the moments of a million samples."""

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from sampling import ERRORS, errors_of, normal_input, sampled
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import momentgen
from momentgen import Moments, nn
from momentgen.laws.numerics.root import root_of
from momentgen.nn import functional


def drawn(layer: torch.nn.Module) -> Callable[..., Tensor]:
    """What the layer computes with its own noise drawn."""

    def run(*values: Tensor) -> Tensor:
        with momentgen.method("sample"):
            return layer(*values).mean

    return run


def assert_agrees(layer: Callable[..., Moments], plain: Callable[..., Tensor], *inputs: Moments) -> None:
    found = Moments(*(part[0] for part in layer(*inputs)))
    assert max(errors_of(found, *sampled(plain, list(inputs)))) < ERRORS


def spread_batch_norm(training: bool) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(3).double().train(training)
    with torch.no_grad():
        for values in (layer.running_mean, layer.weight, layer.bias):
            values.copy_(torch.tensor([0.3, -1.0, 2.0]))
        layer.running_var.copy_(torch.tensor([0.5, 2.0, 1.5]))
    return layer


#: layers of torch that need arguments, in 1, 2 and 3 dimensions or as they are called -> these, and shapes of inputs
STEMS: dict[str, tuple[float, ...]] = {
    "Conv": (2, 3, 2), "ConvTranspose": (2, 3, 2), "BatchNorm": (2,), "InstanceNorm": (2,), "AvgPool": (2,),
    "MaxPool": (2,), "AdaptiveAvgPool": (2,), "AdaptiveMaxPool": (2,), "ConstantPad": (1, 0.5),
    "ZeroPad": (1,), "ReflectionPad": (1,), "ReplicationPad": (1,), "CircularPad": (1,), "Dropout": (),
}  # fmt: skip
_VECTOR, _SEQUENCE, _IMAGE = ((4, 6),), ((3, 5, 6),), ((2, 4, 4, 4),)
GIVEN: dict[str, tuple[tuple[Any, ...], tuple[tuple[int, ...], ...]]] = {
    **{
        f"{stem}{d}d": (arguments, ((3, 2, *[4] * d),)) for stem, arguments in STEMS.items() for d in (1, 2, 3)
    },
    "Linear": ((6, 4), _VECTOR), "LayerNorm": ((6,), _VECTOR),
    "RMSNorm": ((6,), _VECTOR), "GroupNorm": ((2, 4), _IMAGE), "Unflatten": ((1, (2, 3)), _VECTOR),
    "Unfold": ((2,), _IMAGE), "Fold": (((3, 3), 2), ((2, 8, 4),)), "ChannelShuffle": ((2,), _IMAGE),
    "PixelShuffle": ((2,), _IMAGE), "PixelUnshuffle": ((2,), _IMAGE), "Upsample": ((7,), _SEQUENCE),
    "UpsamplingBilinear2d": ((7,), _IMAGE), "UpsamplingNearest2d": ((7,), _IMAGE), "Softmax": ((-1,), _VECTOR),
    "Softmin": ((-1,), _VECTOR), "LogSoftmax": ((-1,), _VECTOR), "Softmax2d": ((), _IMAGE),
    "FeatureAlphaDropout": ((), _IMAGE), "Threshold": ((0.1, 20.0), _VECTOR),
    "MultiheadAttention": ((6, 2), _SEQUENCE * 3),
    "Transformer": ((6, 2, 1, 1, 8), _SEQUENCE * 2), "TransformerEncoderLayer": ((6, 2, 8), _SEQUENCE),
    "TransformerDecoderLayer": ((6, 2, 8), _SEQUENCE * 2),
    "TransformerEncoder": ((torch.nn.TransformerEncoderLayer(6, 2, 8), 1), _SEQUENCE),
    "TransformerDecoder": ((torch.nn.TransformerDecoderLayer(6, 2, 8), 1), _SEQUENCE * 2),
}  # fmt: skip
#: activations by other arguments than the defaults
OTHERS = [
    ("ELU", (0.5,)), ("ELU", (2.5,)), ("CELU", (0.3,)), ("Hardtanh", (-2.0, 3.0)), ("Hardtanh", (0.0, 0.25)),
    ("Softplus", (2.0,)), ("Softplus", (0.25, 30.0)), ("Softshrink", (1.25,)), ("Hardshrink", (0.125,)),
    ("Threshold", (0.0, -1.0)), ("Threshold", (-0.5, 3.0)), ("GELU", ("tanh",)),
]  # fmt: skip
TWINS = [name for name in nn.LAYERS if hasattr(torch.nn, name) and not name.startswith("Embedding")]


@pytest.mark.parametrize(
    ("name", "arguments"), [*((name, GIVEN.get(name, ((), ()))[0]) for name in TWINS), *OTHERS], ids=str
)
def test_a_layer_has_the_bits_of_torchs_layer_of_its_name_that_was_converted(name: str, arguments: Any) -> None:
    """Moments of torch's functions are asked for in the tests of laws."""
    torch.manual_seed(3)
    layer, twin = (getattr(home, name)(*arguments).double().eval() for home in (nn, torch.nn))
    twin.load_state_dict(layer.state_dict())
    inputs = []
    for shape in GIVEN.get(name, ((), _VECTOR))[1]:
        mean = torch.randn(shape, dtype=torch.float64)
        inputs.append(Moments(mean, torch.rand(shape, dtype=torch.float64) + 0.05))
    with torch.no_grad():
        found, wanted = layer(*inputs), momentgen.convert(twin, "ap2")(*inputs)
    pairs = list(zip(tree_leaves(found), tree_leaves(wanted), strict=True))
    assert len(pairs) >= 2
    for one, other in pairs:
        assert torch.equal(one, other)
    with torch.no_grad(), momentgen.method("ap1"):
        certain = tree_leaves(layer(*inputs))
    with torch.no_grad():
        plain = tree_leaves(twin(*(x.mean for x in inputs)))
    assert not any(var.any() for var in certain[1::2])
    for one, other in zip(certain[::2], plain, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", [name for name in nn.LAYERS if not hasattr(torch.nn, name)])
def test_an_activation_that_torch_has_not_is_its_op(name: str) -> None:
    layer, x = getattr(nn, name)(), normal_input(1, 6)
    torch.testing.assert_close(tuple(layer(x)), tuple(layer.op()(*x)))


OWN = {
    "injected normal noise": (lambda: nn.InjectedNoise(0.4, 0.1), (3,)),
    "injected logistic noise": (lambda: nn.InjectedNoise(0.4, 0.1, "logistic"), (3,)),
    "logistic Bernoulli": (lambda: nn.LogisticBernoulli(), (4,)),
    "bow tie": (lambda: nn.BowTie(0.5, 0.3), (4,)),
    "bow tie, cold and without noise": (lambda: nn.BowTie(0.01), (4,)),
}


@pytest.mark.parametrize("name", OWN)
def test_moments_are_those_of_a_million_samples(name):
    make, shape = OWN[name]
    layer = make().double().train()
    with torch.no_grad():
        assert_agrees(layer, drawn(layer), normal_input(1, *shape))


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


def test_a_value_met_with_itself_is_not_taken_as_two():
    x = normal_input(1, 4)
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


@pytest.mark.parametrize("method", ["ap2", "sample"])
@pytest.mark.parametrize("make", [nn.Embedding, lambda *size: nn.EmbeddingBag(*size, mode="max")])
def test_embeddings_and_bags_of_them_are_certain(make, method):
    layer, indices = make(6, 3), torch.tensor([[1, 4, 0], [5, 1, 1]])
    with momentgen.method(method):
        found = layer(indices)
    assert torch.equal(found.mean, getattr(torch.nn, type(layer).__name__).forward(layer, indices))
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


def test_one_variance_for_all_inputs_costs_a_linear_map_no_second_product() -> None:
    layer, x = torch.nn.Linear(8, 4), torch.randn(5, 8)
    flops = {}
    for name, var in (("one", torch.tensor(0.1).expand_as(x)), ("each", torch.full_like(x, 0.1))):
        with FlopCounterMode(display=False) as counter:
            found = momentgen.convert(layer, "ap2")(Moments(x, var))
        flops[name] = counter.get_total_flops()
        torch.testing.assert_close(found.var, 0.1 * layer.weight.square().sum(1).expand(5, 4))
    assert flops == {"one": 2 * 5 * 8 * 4, "each": 4 * 5 * 8 * 4}


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_the_unit_of_the_largest_mean_passes_a_pool_by_identity_delta(dims: int):
    torch.manual_seed(dims)
    x = Moments(torch.randn(2, 3, *[5] * dims).double(), torch.rand(2, 3, *[5] * dims).double())
    x.mean.requires_grad_()
    pool = nn.set_variant(getattr(nn, f"MaxPool{dims}d")(3, 2, padding=1), "identity_delta")
    found = pool(x)
    assert torch.equal(found.mean, getattr(torch.nn, f"MaxPool{dims}d")(3, 2, padding=1)(x.mean))
    of = dict(zip(x.mean.flatten().tolist(), x.var.flatten().tolist(), strict=True))
    assert found.var.flatten().tolist() == [of[value] for value in found.mean.flatten().tolist()]
    found.mean.sum().backward()
    assert x.mean.grad is not None
    assert not torch.equal(nn.set_variant(pool, None)(x).var, found.var)


# The bow tie layer: the paper's unit under each method, and in networks.
def moments(*shape: int) -> Moments:
    torch.manual_seed(1)
    return Moments(torch.randn(*shape), torch.rand(*shape))


def test_ap1_is_the_unit_s_mean_bit_for_bit() -> None:
    x, layer = torch.linspace(-3, 3, 41), nn.BowTie(0.3, 0.2)
    with momentgen.method("ap1"):
        out = layer(x)
    assert torch.equal(out.mean, x * torch.sigmoid(x / 0.3))
    assert not out.var.any()


def test_a_draw_without_noise_is_the_input_or_0_with_the_gate_s_probability() -> None:
    torch.manual_seed(3)
    x = torch.full((200_000,), -0.4)
    with momentgen.method("sample"):
        drawn = nn.BowTie(0.5)(x).mean
    open_ = drawn == x
    assert (open_ | (drawn == 0)).all()
    p = 1 / (1 + math.exp(0.8))
    assert abs(open_.double().mean().item() - p) < 5 * math.sqrt(p * (1 - p) / x.numel())


def test_a_draw_has_normal_noise_whether_the_gate_is_open_or_not() -> None:
    torch.manual_seed(3)
    x = torch.cat([torch.full((100_000,), -50.0), torch.full((100_000,), 50.0)]).double()
    with momentgen.method("sample"):
        noise = nn.BowTie(0.5, 0.7)(x).mean - x.clamp_min(0)
    for part in noise.chunk(2):
        assert abs(part.mean().item()) < 5 * 0.7 / math.sqrt(part.numel())
        assert abs(part.var().item() / 0.49 - 1) < 5 * math.sqrt(2 / part.numel())
        assert abs((part**4).mean().item() / 0.49**2 - 3) < 5 * math.sqrt(96 / part.numel())


def test_its_parameters_are_shown() -> None:
    assert repr(nn.BowTie(0.25, 0.5)) == "BowTie(tau=0.25, eta=0.5)"

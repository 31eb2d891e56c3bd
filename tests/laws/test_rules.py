"""Every function that the table has for ``Diagonal``, against a million samples, torch's Jacobian or torch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws import test_every_function
from laws.linear_cases import LINEAR, MOVED, fixed
from laws.sampled_cases import APPROXIMATE, EXACT, Case
from laws.small_networks import Of
from sampling import assert_agrees, law_of, normal_input
from torch import Tensor, nn
from torch.func import jacrev

import momentgen
from momentgen import noisy
from momentgen.errors import InputError, UnsupportedError
from momentgen.laws import Diagonal, diagonal, lower, point
from momentgen.laws.activations import UNDEFINED
from momentgen.laws.diagonal import Point
from momentgen.laws.table import KINDS
from momentgen.runtime import Moments


def inputs(shapes: tuple[tuple[int, ...], ...], **options: Any) -> list[Moments]:
    return [normal_input(*shape, seed=seed, **options) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("case", [*EXACT.values(), *APPROXIMATE.values()], ids=[*EXACT, *APPROXIMATE])
def test_rules_are_within_four_standard_errors_of_a_million_samples_or_their_stated_bias(case: Case) -> None:
    given = inputs(case.shapes, **dict(case.options))
    assert_agrees(case.function, *given, batched=case.batched, n=case.n, bias=case.bias)


# --------------------------------------------------------------------- point
_NOISY = {name: case for name, case in {**EXACT, **APPROXIMATE}.items() if case.noise}


@pytest.mark.parametrize("name", _NOISY)
def test_noise_on_a_point_is_a_diagonal_if_it_is_asked_for_and_its_mean_if_not(name: str) -> None:
    case = _NOISY[name]
    given = [x.mean for x in inputs(case.shapes)]
    with torch.no_grad():
        law = case.function(*[point(x.clone(), Diagonal) for x in given])
        certain = case.function(*[diagonal(x.clone(), torch.zeros_like(x)) for x in given])
        mean = case.function(*[point(x.clone()) for x in given])
    assert isinstance(law, Diagonal)
    assert isinstance(mean, Point)
    torch.testing.assert_close(law.moments().mean, certain.moments().mean)
    torch.testing.assert_close(law.moments().var, certain.moments().var)
    torch.testing.assert_close(mean.value, certain.moments().mean)


def test_multi_head_attention_as_a_module_on_certain_values_is_torchs() -> None:
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(4, 2, batch_first=True).double().eval()
    x = fixed(2, 3, 4)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    want, weights = layer(x, x, x, key_padding_mask=mask)
    with torch.no_grad():
        found, own = layer(diagonal(x, torch.zeros_like(x)), *[diagonal(x, torch.zeros_like(x))] * 2, mask)
        exact, _ = layer(point(x), point(x), point(x), mask)
    torch.testing.assert_close(found.moments().mean, want)
    torch.testing.assert_close(own.moments().mean, weights)
    torch.testing.assert_close(exact.value, want)


# --------------------------------------------------------------------- forms

CREATED: dict[str, Callable[[Any], Any]] = {
    "zeros_like": torch.zeros_like, "ones_like": torch.ones_like, "full_like": lambda x: torch.full_like(x, 2.5),
    "new_zeros": lambda x: x.new_zeros(2, 2), "new_ones": lambda x: x.new_ones((3,)),
    "new_full": lambda x: x.new_full((3,), 1.5), "new_tensor": lambda x: x.new_tensor([1.0, 2.0]),
}  # fmt: skip
SHAPED: dict[str, Callable[[Any], Any]] = {
    "empty_like": torch.empty_like,
    "new_empty": lambda x: x.new_empty(3),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 2), (1, 2)),
}
QUERIED: dict[str, Callable[[Any], Any]] = {
    "size": lambda x: (x.size(), x.size(1), x.size(dim=0), x.shape), "dim": lambda x: (x.dim(), x.ndim),
    "ndimension": lambda x: x.ndimension(), "numel": lambda x: (x.numel(), torch.numel(x)),
    "nelement": lambda x: x.nelement(), "stride": lambda x: (x.stride(), x.stride(0)),
    "is_floating_point": lambda x: (x.is_floating_point(), torch.is_floating_point(x)),
    "is_complex": lambda x: x.is_complex(), "element_size": lambda x: (x.element_size(), x.itemsize),
    "is_contiguous": lambda x: x.is_contiguous(), "get_device": lambda x: x.get_device(),
    "storage_offset": lambda x: x.storage_offset(), "is_inference": lambda x: x.is_inference(),
    "is_signed": lambda x: x.is_signed(), "is_conj": lambda x: x.is_conj(), "is_neg": lambda x: x.is_neg(),
    "isnan": lambda x: x.isnan().tolist(), "isinf": lambda x: torch.isinf(x).tolist(),
    "isfinite": lambda x: x.isfinite().tolist(), "isposinf": lambda x: x.isposinf().tolist(),
    "isneginf": lambda x: x.isneginf().tolist(), "is_same_size": lambda x: x.is_same_size(torch.zeros(2, 3)),
    "dim_order": lambda x: x.dim_order(), "result_type": lambda x: torch.result_type(x, 1.0),
    "dtype": lambda x: (x.dtype, x.device, x.layout, x.is_cuda, x.is_cpu, x.requires_grad, len(x)),
}  # fmt: skip
#: functions that have a rule or a kind with a rule, and are covered elsewhere
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(KINDS["write"], "test_in_place.py"),
    **dict.fromkeys(KINDS["refusal"], "multi-head attention modules above ask them"),
    **dict.fromkeys(UNDEFINED, "test_mistakes.py: refused by name"),
    "logsumexp": "test_mistakes.py: refused by name",
    "native_channel_shuffle": "channel_shuffle, which calls it; torch has no derivative of it",
    **dict.fromkeys(("float", "half", "bfloat16", "cuda", "requires_grad_"), "conversions, below"),
}


@pytest.mark.parametrize("name", [*CREATED, *SHAPED])
def test_a_tensor_like_a_random_value_is_certain(name: str) -> None:
    function = {**CREATED, **SHAPED}[name]
    x = normal_input(2, 3)
    found, want = function(law_of(x)), function(x.mean)
    assert isinstance(found, Point)
    assert found.shape == want.shape
    assert found.dtype == want.dtype
    assert (lower(found).var == 0).all()
    if name in CREATED:
        assert torch.equal(lower(found).mean, want)
        assert torch.equal(function(point(x.mean)).value, want)


def test_a_mask_like_a_random_value_is_a_tensor() -> None:
    assert type(torch.ones_like(law_of(normal_input(2)), dtype=torch.bool)) is Tensor
    with pytest.raises(UnsupportedError):
        torch.zeros(1).new_tensor(law_of(normal_input(2)))
    with pytest.raises(UnsupportedError, match="full_like"):
        torch.full_like(law_of(normal_input(2)), law_of(normal_input()))


@pytest.mark.parametrize("name", QUERIED)
def test_the_form_of_a_random_value_is_that_of_a_tensor(name: str) -> None:
    x = normal_input(2, 3)
    want = QUERIED[name](x.mean)
    assert QUERIED[name](law_of(x)) == want
    assert QUERIED[name](point(x.mean)) == want


@pytest.mark.parametrize("function", [lambda x: x.float(), lambda x: x.half(), lambda x: x.bfloat16()])
def test_conversions_convert_mean_and_variance_but_never_to_half_precision(function: Callable[[Any], Any]) -> None:
    x = normal_input(4)
    found = function(law_of(x)).moments()
    assert torch.equal(found.mean, x.mean.float())
    assert torch.equal(found.var, x.var.float())


@pytest.mark.parametrize(
    "norm",
    [
        lambda x: torch.linalg.vector_norm(x, dim=1, dtype=torch.float64),
        lambda x: torch.linalg.vector_norm(x=x, dim=1, dtype=torch.float64),
        lambda x: torch.linalg.norm(x, dtype=torch.float64),
        lambda x: torch.norm(x, 2, 1, True, None, torch.float64),
        lambda x: x.norm(2, 1, True, torch.float64),
    ],
)
def test_a_norm_is_computed_in_the_dtype_that_it_asks_for(norm: Callable[[Any], Any]) -> None:
    x = Moments(*(part.float() for part in normal_input(2, 3)))
    found, expected = norm(law_of(x)).moments(), norm(law_of(Moments(x.mean.double(), x.var.double()))).moments()
    assert found.mean.dtype is found.var.dtype is torch.float64
    assert all(map(torch.equal, found, expected))


def test_what_a_network_asks_of_its_own_values_gradients_changes_no_law() -> None:
    law = law_of(normal_input(4))
    assert law.requires_grad_() is law
    assert not law.requires_grad  # the user's mean and variance are as they were


def test_every_function_of_the_table_with_a_rule_has_a_case() -> None:
    tables = (LINEAR, MOVED, EXACT, APPROXIMATE, CREATED, SHAPED, QUERIED)
    cased = {name.split(",")[0] for table in tables for name in table}
    every = test_every_function
    cased |= {call.values[0] for call in every.calls(*every.LINEAR, *every.SAMPLED, "pointwise")}
    rules = Diagonal.RULES
    for kind, names in KINDS.items():
        for name in names:
            if name in rules or kind in rules:
                assert name in cased or name in ELSEWHERE, f"{kind} {name} has a rule and no case"


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_without_a_batch_is_that_of_a_batch_of_one_where_all_values_have_one_variance(dims, transposed):
    convolution = getattr(F, f"conv_transpose{dims}d" if transposed else f"conv{dims}d")
    weight = torch.linspace(-1, 1, 4 * 2**dims).view(2, 2, *[2] * dims)
    mean = torch.linspace(-1, 1, 2 * 3**dims).view(2, *[3] * dims)
    var = torch.tensor(0.3).expand(mean.shape)
    found = convolution(diagonal(mean, var), weight).moments()
    expected = convolution(diagonal(mean[None], var[None]), weight).moments()
    torch.testing.assert_close((found.mean, found.var), (expected.mean[0], expected.var[0]))


def test_prelu_of_a_number_is_a_number():
    found = F.prelu(diagonal(torch.tensor(0.6), torch.tensor(0.3)), torch.tensor([0.25])).moments()
    expected = F.prelu(diagonal(torch.tensor([0.6]), torch.tensor([0.3])), torch.tensor([0.25])).moments()
    assert found.mean.shape == found.var.shape == ()
    torch.testing.assert_close((found.mean, found.var), (expected.mean[0], expected.var[0]))


# ``max_rows=0``: the linear answer, exact for linear networks, and A Σ Aᵀ with the mean of ap2 for others.
torch.manual_seed(0)
NETWORKS = {
    "linear": nn.Linear(6, 3),
    "tanh": nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
    "softmax": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1)),
    "many outputs": nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 100)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("correlated", [False, True])
def test_the_covariance_is_that_of_the_jacobian_at_the_mean(name: str, correlated: bool) -> None:
    net = NETWORKS[name].double().eval()
    torch.manual_seed(1)
    mean = torch.randn(4, 6, dtype=torch.float64)
    root = torch.randn(6, 6, dtype=torch.float64) / 3
    covariance = root.T @ root if correlated else torch.full((6,), 0.04, dtype=torch.float64).diag()
    x = noisy(mean, cov=covariance) if correlated else noisy(mean, std=0.2)
    out = momentgen.convert(net, max_rows=0)(x)
    jacobian = torch.stack([jacrev(net)(example[None])[0, :, 0] for example in mean])
    torch.testing.assert_close(out.covariance.detach(), (jacobian @ covariance @ jacobian.mT).detach())
    with momentgen.method("ap2"):
        expected = momentgen.convert(net)(x).mean
    torch.testing.assert_close(out.mean, expected)
    assert out.std_error is None
    assert out.mean_error is None


def test_two_calls_and_two_seeds_have_the_same_bits() -> None:
    x = noisy(torch.ones(2, 6, dtype=torch.float64), std=0.3)
    found = [momentgen.convert(NETWORKS["tanh"].double().eval(), max_rows=0, seed=seed)(x) for seed in (0, 0, 5)]
    for other in found[1:]:
        assert torch.equal(found[0].mean, other.mean)
        assert torch.equal(found[0].var, other.var)


def test_the_mean_is_the_plain_output_where_ap2_knows_no_rule() -> None:
    x = torch.linspace(1, 3, 8, dtype=torch.float64).reshape(2, 4)
    unknown = Of(lambda x: torch.fft.rfft(x, dim=-1).abs().sum(-1)).eval()
    out = momentgen.convert(unknown, max_rows=0)(noisy(x, std=0.01))
    torch.testing.assert_close(out.mean, unknown(x))
    jacobian = jacrev(unknown)(x).diagonal(dim1=0, dim2=1).T
    torch.testing.assert_close(out.var, 1e-4 * jacobian.square().sum(-1))


def test_networks_that_draw_are_refused_with_what_to_use() -> None:
    net = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).double()
    net[1].train()
    network = momentgen.convert(net, max_rows=0)
    with momentgen.method("controlled"), pytest.raises(UnsupportedError, match="leave max_rows out"):
        network(noisy(torch.ones(2, 6, dtype=torch.float64), std=0.3))
    with pytest.raises(InputError, match="or 0 for the linear answer"):
        momentgen.convert(net, max_rows=3)


def test_gradients_of_the_linear_answer_are_those_of_its_formula() -> None:
    net = NETWORKS["tanh"].double().eval()
    mean = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    out = momentgen.convert(net, max_rows=0)(noisy(mean, std=0.2))
    (found,) = torch.autograd.grad(out.var.sum(), mean)
    jacobian = torch.stack([jacrev(net)(example[None])[0, :, 0] for example in mean])
    (expected,) = torch.autograd.grad(0.04 * jacobian.square().sum(), mean)
    torch.testing.assert_close(found, expected)

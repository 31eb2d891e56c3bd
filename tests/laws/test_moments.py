"""The pair of tensors that enters and leaves networks."""

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributions as td
import torch.utils._pytree as pytree
from laws.small_networks import Of
from scipy import stats
from torch import Tensor, nn

import momentgen
from momentgen import Moments, noisy
from momentgen.errors import InputError
from momentgen.laws import listening
from momentgen.laws.distributions import student_quantile
from momentgen.nn.monte_carlo import monte_carlo
from momentgen.runtime import JointMoments


@pytest.mark.parametrize("var", [0.01, 1, torch.tensor(0.25)])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_a_single_variance_is_that_of_every_value(var: Any, shape: tuple[int, ...]) -> None:
    x = Moments(torch.zeros(shape), var)
    assert x.var.shape == shape
    assert x.var.dtype == torch.float32
    torch.testing.assert_close(x.var, torch.full(shape, float(var)))
    for dtype in (torch.float64, torch.bfloat16):
        assert Moments(torch.zeros(shape, dtype=dtype), float(var)).var.dtype is dtype


def test_a_gradient_flows_to_a_single_variance() -> None:
    var = torch.tensor(0.5, requires_grad=True)
    Moments(torch.zeros(3), var).var.sum().backward()
    assert var.grad == 3


def test_anything_may_stand_in_the_places_of_the_tensors() -> None:
    assert Moments(0, None) == (0, None)
    mean = torch.zeros(2)
    assert Moments(mean, None).var is None
    assert Moments(mean=mean, var=mean).mean is mean
    assert Moments(1, 2)._replace(var=3) == (1, 3)
    assert Moments._make([1, 2]) == (1, 2)


def test_pytrees_take_it_apart_and_put_it_together() -> None:
    x = Moments(torch.ones(2), torch.ones(2))
    leaves, form = pytree.tree_flatten({"x": x})
    assert len(leaves) == 2
    assert type(pytree.tree_unflatten(leaves, form)["x"]) is Moments
    assert pytree.tree_map(lambda part: part.shape, x) == Moments(torch.Size([2]), torch.Size([2]))
    assert pytree.treespec_loads(pytree.treespec_dumps(form)) == form


def test_vmap_maps_over_it_and_completes_a_variance_within() -> None:
    x = torch.randn(3, 2)
    out = torch.vmap(lambda mean: Moments(mean, 0.5))(x)
    assert type(out) is Moments
    torch.testing.assert_close(out.var, torch.full((3, 2), 0.5))
    twice = torch.vmap(lambda m: Moments(2 * m.mean, m.var), in_dims=(Moments(0, None),))(
        Moments(x, torch.tensor([1.0, 2]))
    )
    torch.testing.assert_close(twice.var, torch.tensor([1.0, 2]).expand(3, 2))


_NOT_LINEAR: list[Callable[[Any, Any], Any]] = [
    operator.matmul, operator.pow, operator.floordiv, operator.mod, operator.and_, operator.or_, operator.xor,
]  # fmt: skip
_COMPARE: list[Callable[[Any, Any], Any]] = [operator.lt, operator.le, operator.gt, operator.ge]
_ONE: list[Callable[[Any], Any]] = [
    abs, operator.invert, float, int, bool, complex, round, operator.index, np.asarray, np.sin
]  # fmt: skip


_PAIR = Moments(torch.ones(2), torch.ones(2))


@pytest.mark.parametrize(
    ("operation", "other"),
    [
        *itertools.product([*_NOT_LINEAR, *_COMPARE], [2.0, torch.ones(2), _PAIR, (1, 2)]),
        *((own, _PAIR) for own in (operator.add, operator.sub, operator.mul, operator.truediv)),  # share what noise?
    ],
)
def test_operators_that_are_not_linear_say_what_to_use(operation: Callable[[Any, Any], Any], other: Any) -> None:
    x = Moments(torch.zeros(2), torch.ones(2))
    for pair in ((x, other), (other, x)):
        with pytest.raises(InputError, match=r"momentgen\.propagate\(lambda"):
            operation(*pair)


@pytest.mark.parametrize("operation", _ONE)
def test_conversions_say_what_to_use(operation: Callable[[Any], Any]) -> None:
    with pytest.raises(InputError, match="momentgen"):
        operation(Moments(torch.zeros(1), torch.ones(1)))


def test_it_can_be_hashed_and_compared_for_equality() -> None:
    x = Moments(torch.zeros(2), torch.ones(2))
    assert x == Moments(x.mean, x.var)
    assert x != (x.mean,)
    assert hash(x) == hash(Moments(x.mean, x.var))


def test_a_standard_deviation_has_the_shape_of_the_mean_and_the_dtype_of_the_variance() -> None:
    std = Moments(torch.zeros(2, 3), torch.tensor([1.0, 4, 0], dtype=torch.bfloat16)).std
    assert std.tolist() == [[1, 2, 0]] * 2
    assert std.dtype == torch.bfloat16
    assert Moments(torch.zeros(2), torch.tensor([-1.0, float("nan")])).std.isnan().all()


# Inputs with a covariance, by every method; class posteriors of dense outputs; summaries of plain networks.
DRAWS = 20_000


def covariance(*shape: int) -> Tensor:
    torch.manual_seed(2)
    half = torch.randn(*shape, shape[-1])
    return half @ half.mT


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2).eval()


@pytest.mark.parametrize("shape", [(3,), (4, 3)])
@pytest.mark.parametrize("method", ["ap1", "ap2", None])
def test_each_method_takes_the_covariance_or_says_that_it_does_not(method: Any, shape: tuple[int, ...]) -> None:
    net, mean, cov = linear(), torch.randn(4, 3), covariance(*shape)
    with listening() as notes:
        found = momentgen.convert(net, method)(momentgen.noisy(mean, cov=cov))
    torch.testing.assert_close(found.mean, net(mean))
    exact = (net.weight @ cov @ net.weight.T).expand(4, 2, 2)
    if method in ("ap1", "ap2"):
        diagonal = cov.diagonal(dim1=-2, dim2=-1) @ net.weight.square().T
        torch.testing.assert_close(found.var, 0 * found.var if method == "ap1" else diagonal.expand(4, 2))
        assert any("correlated" in note for note in notes) == (method == "ap2")
        return
    torch.testing.assert_close(found.covariance, exact, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.var, exact.diagonal(dim1=-2, dim2=-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["sample", "local", "monte_carlo"])
def test_draws_have_the_covariance(method: Any) -> None:
    net, cov = linear(), covariance(3)
    exact = (net.weight @ cov @ net.weight.T).detach()
    if method == "monte_carlo":
        x = momentgen.noisy(torch.zeros(2, 3), cov=cov)
        found = momentgen.monte_carlo(net, x, DRAWS, seed=0).output.var
        torch.testing.assert_close(found.float(), exact.diagonal().expand(2, 2), rtol=0.05, atol=0)
        return
    drawn = momentgen.convert(net, method)(momentgen.noisy(torch.zeros(DRAWS, 3), cov=cov)).mean
    torch.testing.assert_close(drawn.T.cov(), exact, rtol=0.05, atol=0.05 * float(exact.abs().max()))


def test_the_covariance_of_images_is_that_of_their_values_in_order() -> None:
    cov = covariance(8)
    x = momentgen.noisy(torch.zeros(2, 2, 2, 2), cov=cov)
    assert x.var.shape == (2, 2, 2, 2)
    torch.testing.assert_close(x.var[1].flatten(), cov.diagonal())
    torch.testing.assert_close(x.covariance[0], cov, rtol=1e-4, atol=1e-4)


def test_gradients_reach_the_covariance() -> None:
    cov = covariance(3).requires_grad_()
    net = linear()
    out = momentgen.convert(net)(momentgen.noisy(torch.zeros(1, 3), cov=cov))
    out.var[0, 0].backward()
    weight = net.weight[0].detach()
    torch.testing.assert_close(cov.grad, torch.outer(weight, weight), rtol=1e-3, atol=1e-4)


def test_class_posteriors_of_dense_outputs_average_the_softmax() -> None:
    torch.manual_seed(0)
    net = nn.Conv2d(1, 3, 3, padding=1).eval()
    x = momentgen.noisy(torch.randn(2, 1, 4, 4), std=1.0)
    found = momentgen.class_posterior(momentgen.convert(net)(x), dim=1)
    assert found.shape == (2, 3, 4, 4)
    torch.testing.assert_close(found.sum(1), torch.ones(2, 4, 4))
    drawn = x.mean + torch.randn(10_000, 2, 1, 4, 4)
    with torch.no_grad():
        truth = net(drawn.flatten(0, 1)).softmax(1).unflatten(0, (10_000, 2)).mean(0)
    torch.testing.assert_close(found, truth, rtol=0, atol=0.02)


def test_class_posteriors_of_one_example_and_of_classes_in_any_dimension() -> None:
    torch.manual_seed(0)
    factor = torch.randn(2, 5, 6)
    x = JointMoments.of(torch.randn(2, 2, 3), factor.square().sum(1).view(2, 2, 3), factor)
    by_last = momentgen.class_posterior(x)
    turned = factor.view(2, 5, 2, 3).transpose(2, 3).reshape(2, 5, 6)
    by_first = momentgen.class_posterior(JointMoments.of(x.mean.mT, x.var.mT, turned), dim=1)
    torch.testing.assert_close(by_first, by_last.mT)
    alone = momentgen.class_posterior(JointMoments.of(x.mean[0], x.var[0], factor[0]))
    torch.testing.assert_close(alone, by_last[0])


def test_a_summary_of_a_plain_network_is_that_of_the_converted_one() -> None:
    net, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), Moments(torch.randn(4, 3), torch.rand(4, 3))
    assert momentgen.summary(net, x, seed=0).rows == momentgen.summary(momentgen.convert(net), x, seed=0).rows
    assert momentgen.summary(nn.ReLU(), x).rows[0].kind == "ReLU"
    dropping = momentgen.summary(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)).train(), x.mean)
    assert dropping.rows[-1].std[2] > 0  # the network makes noise of its own


# ``noisy(x, distribution)``: noise of any distribution, against draws of the plain network.
CORRELATED = torch.tensor([[0.3, 0.1, 0.0], [0.1, 0.2, -0.1], [0.0, -0.1, 0.4]])
#: distribution of noise for x of shape (4, 3)
DISTRIBUTIONS: dict[str, td.Distribution] = {
    "exponential": td.Exponential(3.0),
    "Laplace": td.Laplace(torch.tensor([0.0, 0.5, 1.0]), 0.2),
    "uniform": td.Uniform(torch.zeros(4, 3), torch.rand(4, 3) + 0.1),
    "Student": td.StudentT(5.0, 0.0, 0.3),
    "Bernoulli": td.Bernoulli(0.2),
    "mixture": td.MixtureSameFamily(
        td.Categorical(torch.tensor([0.8, 0.2])), td.Normal(torch.tensor([0.0, 2.0]), torch.tensor([0.1, 0.5]))
    ),
    "normal vector": td.MultivariateNormal(torch.ones(3), CORRELATED),
    "independent": td.Independent(td.Gamma(torch.full((3,), 2.0), 4.0), 1),
    "Dirichlet": td.Dirichlet(torch.tensor([1.0, 2.0, 3.0])),
}


class WithoutExpand(td.Distribution):
    """Standard normal noise of a user's own, which defines what is asked for most."""

    mean = property(lambda self: torch.zeros(self.batch_shape))
    variance = property(lambda self: torch.ones(self.batch_shape))

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(torch.Size(shape), validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return torch.randn(*sample_shape, *self.batch_shape)


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).eval()


def _draws(distribution: td.Distribution, x: Tensor, count: int = 20_000) -> Tensor:
    shape = x.shape[: x.dim() - len(distribution.batch_shape) - len(distribution.event_shape)]
    return x + distribution.sample(torch.Size((count, *shape)))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_controlled_has_the_moments_of_draws_within_the_stated_error(name: str) -> None:
    distribution, covered, away, ratios = DISTRIBUTIONS[name], [], [], []
    for seed in range(2):
        network, x = _network(), torch.randn(4, 3)
        with torch.no_grad(), momentgen.method("controlled", rtol=1e-9, max_rows=64, seed=seed):
            drawn = network(_draws(distribution, x)).double()
            found = momentgen.convert(network)(noisy(x, distribution))
        std = drawn.std(0)
        covered.append((found.std - std).abs() < 2 * (found.std_error.square() + (std / 140).square()).sqrt())
        away.append((found.mean - drawn.mean(0)) / (found.mean_error.square() + std.square() / len(drawn)).sqrt())
        ratios.append((found.std / std).log())
    assert torch.stack(covered).double().mean() > 0.7  # heavy tails: 64 draws do not always meet them
    assert torch.stack(away).abs().mean() < 1.4
    assert torch.stack(ratios).square().mean().sqrt() < 0.1


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_mean_and_variance_are_those_of_draws_and_sample_draws_from_it(name: str) -> None:
    x, distribution = torch.randn(4, 3), DISTRIBUTIONS[name]
    given = noisy(x, distribution)
    drawn = _draws(distribution, x)
    torch.testing.assert_close(given.mean, drawn.mean(0), rtol=0.0, atol=0.05)
    torch.testing.assert_close(given.std, drawn.std(0), rtol=0.06, atol=0.0)
    same = momentgen.convert(nn.Identity(), "sample")
    sampled = torch.stack([same(given).mean for _ in range(1500)])
    for share in (0.1, 0.5, 0.9):
        torch.testing.assert_close(
            sampled.quantile(share, 0), drawn[:4000].quantile(share, 0), rtol=0.0, atol=0.15
        )  # normal values have other quantiles


def test_events_within_a_sequence_have_a_block_of_the_covariance_each() -> None:
    x, linear = torch.randn(2, 4, 3), nn.Linear(12, 1, bias=False)
    total = nn.Sequential(nn.Flatten(), linear)
    weight = linear.weight.detach().view(4, 3)
    expected = torch.einsum("ti,ij,tj->", weight, CORRELATED, weight)
    given = noisy(x, td.MultivariateNormal(torch.zeros(3), CORRELATED))
    found = momentgen.convert(total.eval())(given)
    torch.testing.assert_close(found.var, expected.expand(2, 1), rtol=1e-4, atol=0.0)


def test_several_noisy_inputs_have_a_distribution_each() -> None:
    x = torch.zeros(3, 2)
    given = (noisy(x, td.Exponential(1.0)), noisy(x, td.Laplace(0.0, 1.0)), noisy(x, std=0.5))
    found = momentgen.convert(Of(lambda a, b, c: a + 2 * b + c), "controlled")(*given)
    torch.testing.assert_close(found.var, torch.full((3, 2), 1 + 4 * 2 + 0.25))
    torch.testing.assert_close(found.mean, torch.ones(3, 2))


def test_other_methods_take_mean_and_variance_and_say_so(method: Any) -> None:
    network, x = _network(), torch.randn(4, 3)
    given = noisy(x, td.Exponential(3.0))
    with listening() as notes, torch.no_grad():
        found = momentgen.convert(network, method)(given)
        normal = momentgen.convert(network, method)(Moments(x + 1 / 3, torch.full((4, 3), 1 / 9)))
    torch.testing.assert_close(found.var, normal.var)
    assert sum("Exponential is taken for normal" in note for note in notes) == 1


def test_normal_noise_is_not_said_to_be_taken_for_normal() -> None:
    with listening() as notes:
        momentgen.convert(_network(), "ap2")(noisy(torch.randn(4, 3), td.Normal(0.0, 0.1)))
    assert not any("taken for normal" in note for note in notes)


def test_a_distribution_without_expand_has_a_draw_for_each_value_of_its_shape() -> None:
    torch.testing.assert_close(noisy(torch.ones(2, 3), WithoutExpand((2, 3))).std, torch.ones(2, 3))


@pytest.mark.parametrize("batch", [(), (5,)])
def test_wishart_noise_has_the_covariance_of_wishart_values(batch: tuple[int, ...]) -> None:
    scale, df = torch.tensor([[1.0, 0.3], [0.3, 0.5]]), 6.0
    given = noisy(torch.zeros(5, 2, 2), td.Wishart(torch.full(batch, df), scale.expand(*batch, 2, 2)))
    # the variance of a linear form tr(B W) is 2 df tr(B S B S)
    form = torch.tensor([[1.0, 2.0], [2.0, -1.0]])
    net = momentgen.convert(Of(lambda x: (x * form).sum((-2, -1))).eval(), max_rows=1024, rtol=0.01)
    found = net(given)
    std = (2 * df * (form @ scale @ form @ scale).trace()).sqrt()
    torch.testing.assert_close(given.mean[0], df * scale)
    assert ((found.std - std).abs() < 4 * found.std_error).all()


def test_monte_carlo_draws_from_it() -> None:
    given = noisy(torch.zeros(2, 3), td.Exponential(1.0))
    found = monte_carlo(nn.ReLU(), given, 20_000, seed=0)
    torch.testing.assert_close(found.output.mean.float(), torch.ones(2, 3), rtol=0.05, atol=0.0)


def test_gradients_reach_the_distributions_parameters() -> None:
    rate = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    net, x = momentgen.convert(_network().double(), "controlled", max_rows=16), torch.randn(4, 3, dtype=torch.float64)

    def value(rate: Tensor) -> Tensor:
        found = net(noisy(x, td.Exponential(rate)))
        total: Tensor = found.mean.sum() + found.var.sum()
        return total

    assert torch.autograd.gradcheck(value, rate, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("df", [1, 2.1, 3, 10, 149, 151, 1e6])
def test_students_quantiles_are_right_far_out(df: float) -> None:
    z = torch.linspace(-8, 8, 33, dtype=torch.float64)
    found = student_quantile(torch.tensor(df, dtype=torch.float64), torch.special.ndtr(z))
    exact = torch.from_numpy(stats.t.ppf(torch.special.ndtr(z).numpy(), df))
    torch.testing.assert_close(found, exact, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("distribution", "exact"),
    [
        (td.Exponential(8.0), stats.expon(scale=1 / 8)),
        (td.Gamma(2.0, 15.0), stats.gamma(2, scale=1 / 15)),
        (td.Laplace(0.0, 0.1), stats.laplace(0, 0.1)),
        (td.Uniform(-0.2, 0.3), stats.uniform(-0.2, 0.5)),
        (td.LogNormal(-2.0, 0.3), stats.lognorm(0.3, scale=math.exp(-2))),
        (td.StudentT(9.0, 0.0, 0.1), stats.t(9, 0, 0.1)),
        (td.Bernoulli(0.02), stats.bernoulli(0.02)),
        (td.Poisson(0.05), stats.poisson(0.05)),
        (td.Binomial(3, torch.tensor(0.2)), stats.binom(3, 0.2)),
        (td.Geometric(0.7), stats.geom(0.7, loc=-1)),
        (td.NegativeBinomial(2.0, torch.tensor(0.1)), stats.nbinom(2, 0.9)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_function_of_one_value_of_a_known_law_has_its_exact_moments_and_quantiles(
    distribution: Any, exact: Any
) -> None:
    first, second, third, fourth = (exact.moment(order) for order in (1, 2, 3, 4))
    mean, var = first + second, second + 2 * third + fourth - (first + second) ** 2
    for dtype in (torch.float32, torch.float64):
        out = momentgen.propagate(lambda x: x + x * x, noisy(torch.zeros(2, dtype=dtype), distribution))
        assert ((out.mean - mean).abs() <= 2 * out.mean_error + 1e-6).all()
        assert ((out.std - var**0.5).abs() <= 2 * out.std_error + 1e-6).all()
        assert (out.std_error < 0.01 * out.std).all()
    high = exact.ppf(0.94)
    found = out.quantile(0.94)
    assert ((found.value - (high + high * high)).abs() <= 3 * found.error).all()


def test_two_counts_are_combined_and_a_third_of_another_law_goes_by_points() -> None:
    rates = (0.3, 0.3)
    out = momentgen.propagate(lambda x: x.exp().sum(), noisy([0.0, 0.0], td.Poisson(0.3)))
    each = [math.exp(rate * math.expm1(2)) - math.exp(2 * rate * math.expm1(1)) for rate in rates]
    assert out.std.item() == pytest.approx(math.sqrt(sum(each)), rel=1e-5)
    assert out.probability(lambda y: y > 2.5).value.item() == pytest.approx(1 - math.exp(-0.6), abs=0.01)
    rates = (0.3, 0.5)
    out = momentgen.propagate(lambda x: x.sqrt().sum(), noisy([0.0, 0.0], td.Poisson(torch.tensor(rates))))
    exact = [stats.poisson(rate).expect(np.sqrt) for rate in rates]
    sigma = math.sqrt(sum(rate - mean**2 for rate, mean in zip(rates, exact, strict=True)))
    assert abs(out.std.item() - sigma) < 3 * out.std_error.item() < 0.3 * sigma


@pytest.mark.parametrize(("factor", "rate"), [(1, 0.05), (1, 0.5), (1, 2.0), (2, 0.5), (2, 2.0)])
def test_levels_of_a_count_that_are_left_out_are_in_the_error(factor: int, rate: float) -> None:
    """exp of a count grows faster than its probabilities fall, at first: the levels left out may be nearly all of σ."""
    out = momentgen.propagate(lambda x: (factor * x).exp(), noisy(0.0, td.Poisson(rate)))
    exact = math.exp(rate * math.expm1(2 * factor)) - math.exp(2 * rate * math.expm1(factor))
    known = abs(out.std.item() - math.sqrt(exact)) <= 2 * out.std_error.item()
    assert known or out.std_error.item() > out.std.item()  # so few draws of such a law tell nothing, and say so


def test_rows_go_on_until_each_count_has_moved() -> None:
    """Of five counts that are 1 in two of a hundred draws, some are 0 in all of the first rows."""
    held = 0
    for seed in range(10):
        with momentgen.method("controlled", seed=seed):
            out = momentgen.propagate(lambda x: (x**3).sum(), noisy([0.0] * 5, td.Bernoulli(0.02)))
        held += int(abs(out.std.item() - math.sqrt(5 * 0.02 * 0.98)) < 2.5 * out.std_error.item())
    assert held >= 8


def test_a_result_that_is_an_argument_counts_as_normal_and_a_note_says_so() -> None:
    first = momentgen.propagate(torch.exp, noisy(0.0, std=0.5))
    with momentgen.laws.listening() as notes:
        momentgen.propagate(torch.square, first)
    assert any("counts as normal" in str(note) for note in notes)


def test_a_function_is_sampled_as_a_network_is() -> None:
    x = noisy(torch.zeros(2, 3), std=0.5)
    found = momentgen.monte_carlo(lambda x: x.exp().sum(-1), x, 4000, seed=0)
    assert found.output.mean.tolist() == pytest.approx([3 * math.exp(0.125)] * 2, rel=0.03)

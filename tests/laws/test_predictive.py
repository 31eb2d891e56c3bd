"""What follows from an answer, where it is known in closed form: quantiles, probabilities, skewness, draws."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.distributions as td
import torch.nn.functional as F
from laws.small_networks import Of
from scipy import stats
from torch import Tensor, nn

import momentgen
from momentgen import Moments, noisy
from momentgen.errors import InputError

LEVELS = (0.025, 0.5, 0.975)


def answer(function: Callable[[Tensor], Tensor], x: Moments, seed: int = 0, **kwargs: float) -> Moments:
    return momentgen.convert(Of(function).eval(), seed=seed, **kwargs)(x)


#: function, number of values, mean, standard deviation, and the law of the result
KNOWN = {
    "a sum": (lambda x: x.sum(-1), 5, 1.0, 0.3, stats.norm(5, 0.3 * math.sqrt(5))),
    "a square": (lambda x: x.square().sum(-1), 1, 0.0, 1.0, stats.chi2(1)),
    "two squares": (lambda x: x.square().sum(-1), 2, 0.0, 1.0, stats.chi2(2)),
    "sixteen squares": (lambda x: x.square().sum(-1), 16, 0.0, 1.0, stats.chi2(16)),
    "exp of a sum of 2": (lambda x: x.sum(-1).exp(), 2, 1.0, 0.3, stats.lognorm(0.3 * math.sqrt(2), scale=math.exp(2))),
    "exp of a sum of 20": (lambda x: x.sum(-1).exp(), 20, 0.0, 0.1, stats.lognorm(0.1 * math.sqrt(20))),
    "the largest of 8": (lambda x: x.amax(-1), 8, 0.0, 1.0, None),
}


def exact(name: str, level: float) -> float:
    law = KNOWN[name][-1]
    return float(stats.norm.ppf(level ** (1 / 8)) if law is None else law.ppf(level))


@pytest.mark.parametrize("name", KNOWN)
def test_two_stated_errors_hold_quantiles_that_are_known(name: str) -> None:
    function, count, mean, std, _ = KNOWN[name]
    z = []
    for seed in range(3):
        x = noisy(torch.full((16, count), mean, dtype=torch.float64), std=std)
        out = answer(function, x, seed)
        for level in LEVELS:
            found = out.quantile(level)
            z.append((found.value - exact(name, level)) / found.error.clamp_min(1e-9))
    off = torch.stack(z)
    if count < 4:  # nodes and points are the same each time
        assert float(off.abs().max()) < 3
        return
    assert float((off.abs() < 2).double().mean()) > 0.9
    assert float(off.square().mean().sqrt()) < 1.35


@pytest.mark.parametrize("shortest", [False, True])
def test_an_interval_holds_as_much_as_it_says(shortest: bool) -> None:
    out = answer(KNOWN["exp of a sum of 2"][0], noisy(torch.ones(1, 2, dtype=torch.float64), std=0.3))
    lower, upper, lower_error, upper_error = out.interval(0.9, shortest=shortest)
    law = KNOWN["exp of a sum of 2"][-1]
    held = law.cdf(float(upper)) - law.cdf(float(lower))
    assert abs(held - 0.9) < 0.005
    assert bool((lower_error < 0.05 * out.std).all())
    assert bool((upper_error < 0.2 * out.std).all())
    if shortest:  # densities at the ends are those of the shortest interval
        assert abs(law.pdf(float(upper)) / law.pdf(float(lower)) - 1) < 0.2


def test_three_values_at_few_nodes_have_a_polynomial_of_fewer_terms_than_nodes() -> None:
    """35 nodes do not tell the 56 terms of fifth degree."""
    given = [noisy(mean, std=std) for mean, std in ((4.999, 0.0032), (19.661e-3, 9.5e-6), (1.04446, 0.00075))]
    out = momentgen.propagate(lambda u, i, phi: u / i * torch.cos(phi), *given)
    assert out.rows == 35
    lower, upper, *errors = ((part - out.mean) / out.std for part in out.interval(0.95))
    assert (lower + 1.96).abs() < 0.02
    assert (upper - 1.96).abs() < 0.02
    assert max(error + out.mean / out.std for error in errors) < 0.02


def test_probabilities_of_a_linear_network_are_those_of_its_normal_law() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(12, 3).eval()
    out = momentgen.convert(layer)(noisy(torch.randn(5, 12), std=0.5))
    covariance = out.covariance
    difference = (out.mean[:, 0] - out.mean[:, 1]) / (
        covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    ).sqrt()
    found = out.probability(lambda y: y[:, 0] > y[:, 1])
    assert found.value.shape == (5,)
    torch.testing.assert_close(found.value, torch.special.ndtr(difference).double(), atol=2e-3, rtol=0)
    above = out.probability(lambda y: y > 0)
    torch.testing.assert_close(above.value, torch.special.ndtr(out.mean / out.std).double(), atol=2e-3, rtol=0)
    flips = out.probability(lambda y: y.argmax(-1) == torch.arange(5) % 3)
    draws = out.sample(20_000)
    torch.testing.assert_close(
        flips.value, (draws.argmax(-1) == torch.arange(5) % 3).double().mean(0), atol=0.02, rtol=0
    )


def test_a_softmax_has_probabilities_for_values_and_classes_that_agree_with_draws() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 4), nn.Softmax(-1)).eval()
    x = torch.randn(3, 10)
    out = momentgen.convert(net)(noisy(x, std=0.4))
    with torch.no_grad():
        plain = net(x + 0.4 * torch.randn(20_000, 3, 10))
    found = out.probability(lambda y: y.argmax(-1) == 2)
    truth = (plain.argmax(-1) == 2).double().mean(0)
    assert bool(((found.value - truth).abs() < 3 * found.error + 0.01).all())
    low = out.quantile(0.1)
    truth = plain.quantile(0.1, dim=0)
    assert bool(((low.value - truth).abs() < 3.5 * low.error + 0.02 * out.std).all())


def test_draws_are_dependent_within_an_example_and_independent_between_examples() -> None:
    mixing = torch.tensor([[1.0, 0.8], [0.0, 0.6]])
    out = answer(lambda x: x @ mixing, noisy(torch.zeros(2, 2), std=1.0))
    draws = out.sample(40_000, seed=3)
    assert draws.shape == (40_000, 2, 2)
    found = torch.corrcoef(draws.flatten(1).T)
    expected = torch.block_diag(*[torch.tensor([[1.0, 0.8], [0.8, 1.0]])] * 2)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)
    torch.testing.assert_close(out.correlation, torch.tensor([[[1.0, 0.8], [0.8, 1.0]]] * 2), atol=0.05, rtol=0)
    single = torch.stack([out.sample(1, seed=seed)[0] for seed in range(400)])
    assert float(torch.corrcoef(single.flatten(1).T)[0, 2].abs()) < 0.2
    assert torch.equal(out.sample(5, seed=1), out.sample(5, seed=1))


@pytest.mark.parametrize(("name", "skewness"), [("a sum", 0.0), ("two squares", 2.0), ("sixteen squares", 8**0.5 / 4)])
def test_the_skewness_is_right_within_its_error(name: str, skewness: float) -> None:
    function, count, mean, std, _ = KNOWN[name]
    out = answer(function, noisy(torch.full((16, count), mean, dtype=torch.float64), std=std))
    value, error = out.skewness
    assert float(((value - skewness) / error).square().mean().sqrt()) < 2.5


def test_noise_that_is_not_normal_has_intervals_of_its_own_law() -> None:
    x = noisy(torch.zeros(1, 1, dtype=torch.float64), td.Uniform(-1.0, 1.0))
    lower, upper, *_ = answer(lambda x: 3 * x.sum(-1) + 1, x).interval(0.95)
    torch.testing.assert_close(torch.cat([lower, upper]), torch.tensor([-1.85, 3.85]).double(), atol=0.05, rtol=0)


def test_more_draws_lessen_the_error_until_the_one_asked_for() -> None:
    out = answer(KNOWN["sixteen squares"][0], noisy(torch.zeros(2, 16), std=1.0), max_rows=64)
    assert bool((out.quantile(0.9).error > 0.1 * out.std).any())
    found = out.quantile(0.9, rtol=0.08)
    assert bool((found.error <= 0.081 * out.std).all())
    assert bool(((found.value - stats.chi2(16).ppf(0.9)).abs() < 4 * found.error).all())
    rare = out.probability(lambda y: y > stats.chi2(16).ppf(0.98), rtol=0.3)
    assert bool(((rare.value - 0.02).abs() < 4 * rare.error).all())


def test_a_batch_in_parts_answers_as_one() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(50, 400), nn.ReLU(), nn.Linear(400, 3)).eval()
    x = noisy(torch.randn(24, 50), std=0.3)
    with torch.no_grad():
        whole, divided = (momentgen.convert(net, memory=memory)(x) for memory in (2**30, 2**20))
    one, other = whole.quantile(0.9), divided.quantile(0.9)
    assert bool(((one.value - other.value).abs() < 5 * (one.error + other.error)).all())
    assert divided.probability(lambda y: y[:, 0] > y[:, 1]).value.shape == (24,)
    assert divided.sample(7).shape == (7, 24, 3)


def test_torchs_distribution_has_draws_and_levels() -> None:
    out = answer(KNOWN["two squares"][0], noisy(torch.zeros(3, 2, dtype=torch.float64), std=1.0))
    law = out.distribution()
    assert law.batch_shape == (3,)
    assert law.sample((4, 5)).shape == (4, 5, 3)
    torch.testing.assert_close(law.mean, out.mean, rtol=0.01, atol=0)
    torch.testing.assert_close(law.variance, out.var, rtol=0.03, atol=0)
    torch.testing.assert_close(law.cdf(law.icdf(torch.tensor(0.7))), torch.full((3,), 0.7).double(), atol=5e-3, rtol=0)
    with pytest.raises(NotImplementedError, match="MultivariateNormal"):
        law.log_prob(out.mean)


def test_an_examples_answers_are_those_of_the_batch() -> None:
    torch.manual_seed(0)
    out = momentgen.convert(nn.Linear(6, 3).eval())(noisy(torch.randn(4, 6), std=0.3))
    one = out[1]
    torch.testing.assert_close(one.quantile(0.9).value, out.quantile(0.9).value[1])
    torch.testing.assert_close(out[:, 2].interval(0.9).upper, out.interval(0.9).upper[:, 2])
    torch.testing.assert_close(
        one.probability(lambda y: y[0] > y[1]).value, out.probability(lambda y: y[:, 0] > y[:, 1]).value[1]
    )
    assert one.sample(5).shape == (5, 3)
    assert one.distribution().sample((2,)).shape == (2, 3)


def test_examples_that_share_random_weights_have_events_of_their_own_alone() -> None:
    from momentgen.inference import MeanField, randomise

    torch.manual_seed(0)
    net = randomise(nn.Linear(4, 2), MeanField(0.3)).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        out = net(x)
    found = out.probability(lambda y: y[:, 0] > y[:, 1])
    covariance = out.covariance.double()
    std = (covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]).sqrt()
    expected = torch.special.ndtr((out.mean[:, 0] - out.mean[:, 1]).double() / std)
    torch.testing.assert_close(found.value, expected, atol=0.02, rtol=0)
    with pytest.raises(InputError, match="share noise"):
        out.probability(lambda y: y[0, 0] > y[1, 0])
    with pytest.raises(InputError, match="share noise"):
        out.probability(lambda y: y[:, 0] > y[:, 0].mean())
    with pytest.raises(InputError, match="share noise"):
        out.sample(5)
    assert out[0].sample(5).shape == (5, 2)


def test_rare_events_take_few_draws_where_the_linear_part_knows_the_direction() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(30, 50), nn.Tanh(), nn.Linear(50, 1)).eval()
    x = torch.randn(4, 30)
    with torch.no_grad():
        plain = torch.cat([layer(x + 0.1 * torch.randn(50_000, 4, 30))[:, :, 0] for _ in range(10)])
        limit = plain.sort(0).values[int(0.999 * len(plain))]
        out = momentgen.convert(layer)(noisy(x, std=0.1))
        found = out.probability(lambda y: y[:, 0] > limit, rtol=0.2)
    assert bool((found.error < 0.21 * found.value).all())
    off = (found.value - 0.001) / (found.error.square() + 0.001 / len(plain)).sqrt()
    assert bool((off.abs() < 3).all())
    assert out._predictive._further(0) < 2_500


@pytest.mark.parametrize(
    ("count", "slope", "dtype"),
    [
        *((count, 1.0, torch.float64) for count in (1, 2, 3, 5, 16, 100)),
        *((2, slope, torch.float32) for slope in (0.5, 1.2)),
    ],
)
def test_two_stated_errors_hold_probabilities_and_quantiles_of_a_curve(
    count: int, slope: float, dtype: torch.dtype
) -> None:
    """Of tanh(s Σx): of few values a polynomial through the nodes of cubature is off, which random points tell."""
    z = []
    for seed in range(4):
        x = noisy(torch.full((2, count), 0.3 / count, dtype=dtype), std=1 / math.sqrt(count))
        out = momentgen.propagate(lambda x: torch.tanh(slope * x.sum(-1)), x, seed=seed)
        for level in (0.05, 0.2, 0.5, 0.8, 0.95):
            place = math.tanh(slope * (0.3 + stats.norm.ppf(level)))
            probability, error = out.probability(lambda y, place=place: y <= place)
            z += ((probability - level) / error).tolist()
            value, error = out.quantile(level)
            z += ((value - place) / error).tolist()
    assert sum(abs(one) < 2 for one in z) >= 0.9 * len(z)
    assert math.hypot(*z) / math.sqrt(len(z)) < 1.3


def test_more_random_points_make_a_probability_as_exact_as_is_asked_for() -> None:
    out = momentgen.propagate(lambda a, b: torch.tanh(a + b / 2), noisy(0.3, std=1.0), noisy(0.0, std=1.0))
    first = out.probability(lambda y: y > 0.5)
    nearer = out.probability(lambda y: y > 0.5, rtol=first.error.item() / first.value.item() / 2)
    assert nearer.error < 0.6 * first.error
    assert abs(nearer.value.item() - stats.norm.sf(math.atanh(0.5) - 0.3, scale=math.hypot(1, 0.5))) < 3 * nearer.error


def test_quantiles_stay_within_the_range_of_a_function_that_saturates() -> None:
    out = momentgen.propagate(lambda a, b: torch.tanh(3 * a + b), noisy(0.1, std=1.0), noisy(0.2, std=1.0))
    assert out.quantile(0.9).value.abs() < 1.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 8, 100])
def test_a_sum_of_three_values_of_any_law_is_exact_at_any_tolerance(batch: int, dtype: torch.dtype) -> None:
    for scale, rtol in ((1.0, 0.05), (1.0, 0.02), (1e-12, 0.05), (1e6, 0.05)):
        means = scale * torch.linspace(1, 2, batch, dtype=dtype)[:, None].repeat(1, 3)
        reach = torch.tensor(3**0.5 * scale, dtype=dtype)
        out = momentgen.propagate(lambda x: x.sum(-1), noisy(means, td.Uniform(-reach, reach)), rtol=rtol)
        torch.testing.assert_close(out.std / scale, torch.full_like(out.std, 3**0.5), rtol=1e-5, atol=0)
        assert (out.std_error < 1e-4 * out.std).all()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_an_event_at_a_kink_has_its_probability(count: int) -> None:
    z = []
    for seed in range(8):
        x = noisy(torch.zeros(count, dtype=torch.float64), std=1.0)
        out = answer(lambda x: torch.relu(x.sum(-1)), x, seed)
        for event in (lambda y: y > 0, lambda y: y == 0):
            found = out.probability(event)
            z.append(float((found.value - 0.5) / found.error))
    assert max(map(abs, z)) < 3, z


def test_an_event_that_no_draw_tells_has_an_error() -> None:
    out = answer(lambda x: x.sum(-1), noisy(torch.zeros(2, dtype=torch.float64), std=1.0))
    never = out.probability(lambda y: y > 4 * 2**0.5)
    assert abs(float(never.value) - 3.17e-5) < 3 * float(never.error) < 3e-4


def test_answers_of_a_network_that_draws_make_nan_are_nan() -> None:
    out = answer(lambda x: x.log().sum(-1), noisy(torch.ones(5), std=0.5))
    for found in (out.quantile(0.5), out.interval(0.9), out.probability(lambda y: y > 0), out.skewness):
        assert all(part.isnan().all() for part in found)


#: a function that draws, its value, and the law of the result: levels and their quantiles, and the skewness
DRAWN = {
    "eight masks": (lambda x: F.dropout(0.1 + 0 * x, 0.2).sum(-1), 8, stats.binom(8, 0.8), 0.125, 0.0),
    "a uniform number": (lambda x: (x + torch.rand_like(x)).sum(-1), 1, stats.uniform(), 1.0, 1e-2),
    "one mask for all examples": (lambda x: F.dropout(torch.ones(()), 0.2) + 0 * x.sum(-1),
        1, stats.bernoulli(0.8), 1.25, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_noise_that_a_network_draws_has_quantiles_of_its_own_law(name: str) -> None:
    function, count, law, scale, off = DRAWN[name]
    for seed in range(4):
        out = answer(function, noisy(torch.zeros(2, count, dtype=torch.float64), std=1e-9), seed)
        for level in (0.03, 0.31, 0.9):
            torch.testing.assert_close(
                out.quantile(level).value, torch.full((2,), scale * law.ppf(level)).double(), atol=off + 1e-6, rtol=0
            )
        value, error = out.skewness
        assert bool(((value - float(law.stats("s"))).abs() < 3 * error + 0.02).all())


@pytest.mark.parametrize(("count", "cap"), [(1, 2.0), (2, 2.0), (3, 2.5), (8, 2.0)])
def test_events_at_a_cap_that_few_rows_meet_have_their_probability(count: int, cap: float) -> None:
    z = []
    for seed in range(16):
        x = noisy(torch.zeros(count, dtype=torch.float64), std=1.0)
        out = answer(lambda x: (x.sum(-1) / count**0.5).clamp(max=cap), x, seed)
        for event in (lambda y: y == cap, lambda y: y >= cap):
            found = out.probability(event)
            z.append(float((found.value - stats.norm.sf(cap)) / found.error))
    assert max(map(abs, z)) < 2.5, z


@pytest.mark.parametrize("steepness", [5, 20])
def test_quantiles_of_a_step_are_its_ends(steepness: int) -> None:
    for seed in range(6):
        given = noisy(0.0, std=1.0), noisy(0.0, std=1.0)
        out = momentgen.propagate(lambda x, y: torch.tanh(steepness * (x + y - 1)), *given, seed=seed)
        lower, upper, *_ = out.interval(0.9)
        assert abs(float(lower) + 1) < 1e-3
        assert abs(float(upper) - 1) < 1e-3
        assert float(out.sample(1000).abs().max()) <= 1


@pytest.mark.parametrize(
    "function", [lambda x: (x > 0.5).sum(-1), lambda x: x.round().amax(-1), lambda x: x.sum(-1) > 1]
)
def test_draws_of_counts_and_decisions_are_whole(function: Callable[[Tensor], Tensor]) -> None:
    out = answer(lambda x: function(x).double(), noisy(torch.zeros(1, 8, dtype=torch.float64), std=1.0))
    draws = out.sample(500)
    assert torch.equal(draws, draws.round())
    assert float(out.quantile(0.7).value) % 1 == 0


def test_a_quantile_beyond_the_rows_says_how_little_they_tell_or_is_refused() -> None:
    """Of squares about 0 all is remainder: no row of 256 is as far out as one in a thousand."""
    held = []
    for seed in range(10):
        out = answer(lambda x: x.square().sum(-1), noisy(torch.zeros(1, 5, dtype=torch.float64), std=1.0), seed)
        found = out.quantile(0.999)
        held.append(abs(found.value.item() - stats.chi2(5).ppf(0.999)) < 2.5 * found.error.item())
    assert sum(held) >= 8
    with pytest.raises(InputError, match=r"With rtol=0\.05 the network runs"):
        out.quantile(0.9999)
    told = out.quantile(0.9999, rtol=0.5)
    assert abs(told.value.item() - stats.chi2(5).ppf(0.9999)) < 3 * told.error.item() < 10
    sure = answer(lambda x: x.sum(-1), noisy(torch.zeros(1, 5, dtype=torch.float64), std=1.0)).quantile(0.9999)
    assert sure.value.item() == pytest.approx(stats.norm.ppf(0.9999) * math.sqrt(5), rel=0.03)


@pytest.mark.parametrize("turns", [3, 20])
def test_probabilities_of_a_curve_that_turns_between_the_nodes_hold(turns: int) -> None:
    x = torch.linspace(-9, 9, 400_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * x.square())
    exact = float((weight * (torch.sin(turns * x) > 0.9)).sum() / weight.sum())
    for seed in range(6):
        one = answer(lambda x: torch.sin(turns * x), noisy(torch.zeros(1, 1, dtype=torch.float64), std=1.0), seed)
        found = one.probability(lambda y: y > 0.9)
        assert abs(found.value.item() - exact) < 3 * found.error.item() < 0.3

"""What can be done with moments: print, index, move, convert, save, and read the notes of their call."""

import copy
import io
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributions as td
from torch import nn

import momentgen
from momentgen import Moments, convert, noisy, propagate
from momentgen.errors import InputError
from momentgen.inference import MeanField, randomise
from momentgen.laws import notes as notes_of_calls
from momentgen.runtime import JointMoments


def network() -> Any:
    torch.manual_seed(0)
    return convert(nn.Linear(3, 2).eval())


@pytest.mark.parametrize("cov", [False, True])
@pytest.mark.parametrize(
    "place", [0, -1, slice(1, 3), torch.tensor([2, 0]), [1], (slice(None), 1), (0, 1), (slice(0, 2), [0])], ids=str
)
def test_an_index_is_one_of_examples_and_keeps_covariance_and_errors(place: Any, cov: bool) -> None:
    x = noisy(torch.ones(4, 3), cov=torch.eye(3)) if cov else noisy(torch.ones(4, 3), std=0.5)
    out = convert(nn.Sequential(nn.Linear(3, 2), nn.Tanh()).eval())(x)
    part = out[place]
    for name in ("mean", "var", "std", "std_error", "mean_error"):
        torch.testing.assert_close(getattr(part, name), getattr(out, name)[place])
    diagonal = part.covariance.diagonal(dim1=-2, dim2=-1).reshape(part.shape)
    torch.testing.assert_close(diagonal, part.var, rtol=1e-4, atol=1e-7)
    assert part.rows == out.rows
    mean, var = out
    assert mean is out.mean
    assert var.shape == out.shape


def test_the_covariance_across_examples_follows_an_index() -> None:
    x, scale = noisy(torch.tensor([1.0, 2.0, 4.0]), std=0.1), noisy(3.0, std=0.2)
    out = propagate(lambda x, s: x * s, x, scale)
    torch.testing.assert_close(out[1:].covariance, out.covariance[1:, 1:])
    torch.testing.assert_close(out[torch.tensor([2, 0])].covariance, out.covariance[[2, 0]][:, [2, 0]])


def test_results_calculate_with_certain_values_exactly() -> None:
    out = network()(noisy(torch.ones(4, 3), std=0.5))
    scale = torch.tensor([2.0, -3.0])
    found = (1 - scale * out) / 2
    torch.testing.assert_close(found.mean, (1 - scale * out.mean) / 2)
    torch.testing.assert_close(found.std, scale.abs() * out.std / 2)
    torch.testing.assert_close(found.std_error, scale.abs() * out.std_error / 2)
    torch.testing.assert_close(found.covariance, scale.outer(scale) * out.covariance / 4)
    torch.testing.assert_close(
        propagate(lambda a, b: a + 2 * b, scale * out, found).std, torch.zeros(4, 2), rtol=0, atol=1e-5
    )


def test_results_are_moved_and_converted() -> None:
    out = network()(noisy(torch.ones(4, 3), std=0.5))
    assert out.mean.requires_grad
    for moved in (out.detach(), out.detach().cpu(), out.to(torch.float64).detach()):
        assert not moved.std.requires_grad
        torch.testing.assert_close(moved.covariance.float(), out.covariance)
        assert moved.rows == out.rows
    mean, std = out.numpy()
    assert (mean.shape, std.shape, out.shape, out.dtype) == ((4, 2), (4, 2), (4, 2), torch.float32)
    assert std.tolist() == out.std.tolist()


def test_values_that_are_moved_go_on_sharing_their_noise() -> None:
    a, b = noisy((1.0, 2.0), cov=[[0.04, 0.04], [0.04, 0.04]])
    out = propagate(lambda x, y: x - y, a.to(torch.float32), (b + 1).to(torch.float32))
    assert out.dtype == torch.float32
    assert float(out.std) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (127.7322, 0.0711, "Moments(127.732 ± 0.071, float64)"),
        (5.0, 0.0, "Moments(5 ± 0, float64)"),
        (2.5e-9, 3e-11, "Moments((2.500 ± 0.030)e-09, float64)"),
        (1234567890.0, 20.0, "Moments((1.234567890 ± 0.000000020)e+09, float64)"),
        ([1.0, 20.0], [0.5, 3.0], "Moments([1.00 ± 0.50, 20.0 ± 3.0], float64)"),
        (float("nan"), float("inf"), "Moments(nan ± inf, float64)"),
    ],
)
def test_moments_print_the_digits_that_their_standard_deviation_allows(mean: Any, std: Any, text: str) -> None:
    std = torch.tensor(std, dtype=torch.float64)
    assert repr(Moments(torch.tensor(mean, dtype=torch.float64), std.square())) == text


def test_results_print_their_error_rows_and_notes() -> None:
    out = propagate(lambda x: (x.exp().sum(-1), x.sum(-1)), noisy(torch.zeros(9), std=0.5), max_rows=16, rtol=1e-3)
    assert repr(out[0]).endswith("float32, controlled, 16 rows, 1 note)")
    assert "(± " in repr(out[0])
    batch = propagate(lambda x: x.exp().sum(-1), noisy(torch.zeros(3, 9), std=0.5))
    assert "σ ± " in repr(batch)


def test_a_result_has_the_notes_of_its_call_and_who_listens_has_them_too() -> None:
    x = noisy(torch.zeros(9), std=0.5)
    with momentgen.laws.listening() as heard:
        out = propagate(lambda x: x.exp().sum(-1), x, max_rows=16, rtol=1e-3)
    assert out.notes == tuple(heard)
    assert any("max_rows=16" in text for text in out.notes)
    assert propagate(lambda x: x.sum(-1), x).notes == ()
    assert convert(nn.ReLU(), "ap2")(x).notes is None


@pytest.mark.parametrize(
    ("function", "said"), [(lambda x: x.exp().sum(), "after 16 rows"), (lambda x: x.log().sum(), "not finite")]
)
def test_nan_draws_and_the_end_of_rows_warn_once(function: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_of_calls, "_warned", set())
    x = noisy(torch.ones(9), std=0.9)
    with pytest.warns(notes_of_calls.AccuracyWarning, match=said):
        propagate(function, x, max_rows=16, rtol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        propagate(function, x, max_rows=16, rtol=1e-3)


def test_moments_of_moments_know_their_shape() -> None:
    x = JointMoments.of(torch.zeros(2), torch.ones(2), torch.eye(2))
    assert (x.shape, x.dtype, x.device) == ((2,), torch.float32, torch.device("cpu"))


def test_what_an_argument_is_off_by_is_in_the_errors_of_what_follows() -> None:
    off, mean_off = [], []
    for seed in range(60):
        first = propagate(
            lambda x: x.square().sum(-1), noisy(torch.ones(1, 6, dtype=torch.float64), std=0.5), seed=seed
        )
        then = propagate(lambda y: 2 * y, first, seed=seed)
        off.append(float((then.std - 2 * (6 * (4 * 0.25 + 2 * 0.0625)) ** 0.5) / then.std_error))
        mean_off.append(float((then.mean - 15) / then.mean_error))
        assert any("errors of σ and mean count that" in note for note in then.notes)
    for z in map(torch.tensor, (off, mean_off)):
        assert (z.abs() <= 2).double().mean() >= 0.88
        assert z.square().mean() < 1.3**2


def test_a_function_that_joins_examples_of_a_result_that_share_weights_is_refused() -> None:
    net = randomise(nn.Linear(4, 1), MeanField(std=0.3)).eval()
    with torch.no_grad():
        out = net(torch.ones(8, 4))
        assert propagate(lambda y: 2 * y, out).std.shape == (8, 1)
        with pytest.raises(InputError, match=r"share noise.*momentgen\.propagate"):
            propagate(lambda y: y.mean(0), out)
        assert propagate(lambda y: y.mean(0), noisy(out.mean, var=out.var)).std < out.std[0]


def test_parts_of_one_result_are_said_to_have_noise_in_common() -> None:
    out = propagate(lambda x: torch.stack([x[:, 0], x.sum(-1)], -1), noisy(torch.zeros(4, 2), std=1.0))
    for parts, said in (((out[:, 1], out[:, 0]), True), ((out[0], out[1]), False)):
        found = propagate(lambda a, b: a - b, *parts)
        assert any("also in another argument" in note for note in found.notes) is said
    net = randomise(nn.Linear(4, 1), MeanField(std=0.3)).eval()
    with torch.no_grad():
        found = propagate(lambda a, b: a - b, net(torch.ones(1, 4)), net(torch.ones(1, 4)))
    assert any("also in another argument" in note for note in found.notes)


@pytest.mark.parametrize("count", [3, 5, 70])
def test_correlated_values_that_are_mapped_one_by_one_have_the_covariance_of_their_images(count: int) -> None:
    covariance = 0.1 * torch.eye(count, dtype=torch.float64) + 0.05
    out = propagate(lambda x: 3 * x, noisy(torch.arange(float(count), dtype=torch.float64), cov=covariance))
    torch.testing.assert_close(out.covariance, 9 * covariance, rtol=1e-5, atol=1e-9)


def test_a_small_variance_beside_large_ones_keeps_its_digits() -> None:
    std = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
    correlation = torch.tensor([[1.0, 0.9, -0.5], [0.9, 1.0, -0.3], [-0.5, -0.3, 1.0]], dtype=torch.float64)
    x = noisy(torch.zeros(1, 3, dtype=torch.float64), cov=std[:, None] * correlation * std)
    out = propagate(lambda x: x + 0, x)
    torch.testing.assert_close(out.std[0], std, rtol=1e-10, atol=0)
    torch.testing.assert_close(propagate(lambda x: x.div(std).sum(-1), x).var[0], correlation.sum())


# Results and noisy inputs through ``torch.save`` and ``torch.load`` with its defaults, and through pickle.
def _loaded(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("name", ["ap1", "ap2", "sample", "local", "controlled"])
def test_results_of_every_method_are_loaded_as_they_were(name: Any) -> None:
    found = momentgen.convert(nn.Linear(3, 2).eval(), name)(noisy(torch.randn(4, 3), std=0.1))
    stored = _loaded({"out": [found]})["out"][0]
    for again in (stored, pickle.loads(pickle.dumps(found)), copy.deepcopy(found.detach())):
        assert type(again) is type(found)
        assert again.mean is not found.mean
        for part in ("mean", "var", "std", "std_error", "mean_error", "factor"):
            torch.testing.assert_close(getattr(again, part, None), getattr(found, part, None), rtol=0, atol=0)
        assert again.rows == found.rows
    if name == "controlled":
        with pytest.raises(InputError, match="answer of the default method"):
            stored.quantile(0.5)


def _of(**noise: Any) -> Moments:
    return noisy(torch.randn(4, 3), **noise)


#: noise: plain, of vectors, mixed, wrapped and transformed; in common, of several values, of a result
NOISE: dict[str, Callable[[], Moments]] = {
    "a pair": lambda: Moments(torch.randn(4, 3), 0.25), "std": lambda: _of(std=0.1),
    "cov": lambda: _of(cov=torch.eye(3)),
    "Laplace": lambda: _of(distribution=td.Laplace(0.0, torch.ones(3))),
    "log-normal": lambda: _of(distribution=td.LogNormal(0.0, 1.0)),
    "Weibull": lambda: _of(distribution=td.Weibull(1.0, 2.0)),
    "normal vector": lambda: _of(distribution=td.MultivariateNormal(torch.zeros(3), torch.eye(3))),
    "independent": lambda: _of(distribution=td.Independent(td.Gamma(torch.ones(3), 4.0), 1)),
    "mixture": lambda: _of(
        distribution=td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Normal(torch.zeros(2), 1.0))
    ),
    "one for each value": lambda: noisy([1.0, 2.0], [td.Uniform(0.0, 1.0)] * 2),
    "in common": lambda: noisy(torch.ones(2), std=0.1, shared=True) + 1,
    "one of several": lambda: noisy((1.0, 2.0), cov=[[1.0, 0.5], [0.5, 1.0]])[0],
    "a result": lambda: momentgen.convert(nn.Linear(3, 2).eval())(_of(std=0.1)).detach(),
}  # fmt: skip


@pytest.mark.parametrize("name", NOISE)
def test_noisy_inputs_are_loaded_with_their_distribution(name: str) -> None:
    given = NOISE[name]()
    again = _loaded(given)
    assert type(again) is type(given)
    assert repr(again) == repr(given)
    found, expected = (propagate(torch.tanh, x) for x in (again, given))
    for part in ("mean", "var", "std_error", "mean_error"):
        assert torch.equal(getattr(found, part), getattr(expected, part))


def test_a_new_process_loads_results_and_has_public_modules_as_attributes(tmp_path: Path) -> None:
    torch.save(momentgen.convert(nn.Linear(3, 2).eval())(noisy(torch.randn(4, 3), std=0.1)), tmp_path / "out.pt")
    code = (
        "import torch, momentgen.laws\n"
        f"found = torch.load({str(tmp_path / 'out.pt')!r})\n"
        "assert found.std_error.shape == found.covariance.shape[:2] == (4, 2)\n"
        "names = ['errors', 'inference', 'laws', 'nn', 'runtime']\n"
        "assert all(getattr(momentgen, name).__name__ == f'momentgen.{name}' for name in names)\n"
        "assert set(names) < set(dir(momentgen))\n"
        "assert not hasattr(momentgen, 'nothing')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""Calls that are refused, and what users are told: mistakes, and what depends on the value that is drawn."""

import inspect
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from sampling import law_of, normal_input
from torch import Tensor, nn

import momentgen
from momentgen import Moments, convert, noisy, propagate
from momentgen.errors import InputError, UnsupportedError
from momentgen.laws import point
from momentgen.laws.activations import UNDEFINED

#: of no known type, as what a newcomer types is not checked
x: Any = noisy(torch.tensor([1.0, 2.0]), std=0.1)
y: Any = noisy(torch.tensor([3.0, 4.0]), std=0.2)
pair: Any = Moments(torch.zeros(2), torch.ones(2))
by_words: Any = "mc"
second: Any = 0.1
words: Any = "1.0"
net = nn.Linear(2, 2).eval()
c = 1.5


#: what is mistaken -> the call, a part of the message, and code of the message that runs
MISTAKES: dict[str, tuple[Callable[[], Any], str, str | None]] = {
    "a function of torch of a noisy value": (lambda: torch.sin(x), "torch.sin takes tensors, got Moments",
        "momentgen.propagate(torch.sin, x)"),
    "a plain network of a noisy value": (lambda: net(x), "convert the network", "momentgen.convert(net)(x)"),
    "a method of tensors": (lambda: x.sum(), "no attribute 'sum'", "momentgen.propagate(lambda a: a.sum(), x)"),
    "a function of math": (lambda: math.sin(x), "a random value is no number; read .mean or .std", None),
    "a function of NumPy": (lambda: np.sin(x), "numpy.sin takes arrays, got Moments",
        "momentgen.propagate(torch.sin, x)"),
    "an array of a noisy value": (lambda: np.asarray(x), "read .mean or .std", None),
    "a product of two noisy values": (lambda: x * y, "Moments * Moments",
        "momentgen.propagate(lambda a, b: a * b, x, y)"),
    "a quotient of two noisy values": (lambda: x / y, "Moments / Moments",
        "momentgen.propagate(lambda a, b: a / b, x, y)"),
    "a power": (lambda: x**2, "Moments ** int", "momentgen.propagate(lambda a, b: a ** b, x, y)"),
    "a sum of two results": (lambda: convert(net)(x) + convert(net)(x), "what noise these share",
        "momentgen.propagate(lambda a, b: a + b, x, y)"),
    "a sum by Python": (lambda: sum([pair, pair]), "what noise these share", None),
    "a tuple before": (lambda: (c,) + x, "tuple + Moments", None),  # noqa: RUF005
    "a sum in compiled code": (partial(torch.compile(lambda z: z + z, backend="eager"), pair),
        "what noise these share", None),
    "a comparison": (lambda: x > c, "above another with a probability",
        "momentgen.propagate(lambda a: (a > c).double(), x).mean"),
    "a decision by a noisy value": (lambda: 1 if x else 0, "bool(Moments): a random value is no number", None),
    "a noisy value indexed": (lambda: x[0], "index it in the function", "momentgen.propagate(lambda x: x[0], x)"),
    "the variance by another name": (lambda: x.variance, "did you mean var?", "x.var"),
    "the standard deviation by another name": (lambda: x.std_dev, "did you mean std?", "x.std"),
    "the covariance of an input": (lambda: x.covariance, "answers of the default method have it",
        "momentgen.propagate(f, x).covariance"),
    "noise without its size": (lambda: noisy(torch.zeros(2)), "expected one of distribution, var, std and cov", None),
    "a standard deviation in second place": (lambda: noisy(1.0, second),
        "give a variance or standard deviation by name, var= or std=", None),
    "a negative standard deviation": (lambda: noisy(1.0, std=-0.1), "standard deviation of at least 0", None),
    "a tuple in the place of a list": (lambda: noisy((1.0, 2.0), std=0.1), "give a list, noisy([...], std=...)", None),
    "several values with too small a covariance": (lambda: noisy((1.0, 2.0, 3.0), cov=[[1.0, 0.0], [0.0, 1.0]]),
        "expected cov of all 3 values", None),
    "a list for a network in float32": (lambda: convert(net)(noisy([[1.0, 2.0]], std=0.1)),
        "write momentgen.noisy(torch.tensor(x), ...)", None),
    "a list for a convolution in float32": (
        lambda: convert(nn.Conv1d(1, 1, 1).eval(), "ap2")(noisy([[[1.0, 2.0]]], std=0.1)),
        "or convert network.double()", None),
    "words in the place of numbers": (lambda: noisy(words, std=0.1), "expected numbers or a tensor as means", None),
    "whole numbers in a tensor": (lambda: noisy(torch.tensor([1, 2]), std=0.1), "use x.float()", None),
    "noise on noise": (lambda: noisy(x, std=0.1), "x + momentgen.noisy(0.0, std=...)", None),
    "a class in the place of a network": (lambda: convert(nn.ReLU), "got the class ReLU; make a network of it", None),
    "a value in the place of a function": (lambda: propagate(x, lambda x: x),
        "expected a torch.nn.Module or a function of tensors, got NoisyMoments", None),
    "a noisy value in a closure": ((lambda own: lambda: propagate(lambda y: own * y, y))(x),
        "holds noisy values; pass it as an argument", "momentgen.propagate(lambda a, b: a * b, x, y)"),
    "a noisy value in a global variable": (lambda: propagate(lambda y: x + y, y), "pass it as an argument",
        "momentgen.propagate(lambda a, b: a * b, x, y)"),
    "a formula with math inside": (lambda: propagate(lambda a: math.sin(a), noisy(1.0, std=0.1)),
        "torch.sin in the place of math.sin", None),
    "a number read out inside": (lambda: propagate(lambda a: {"twice": 2 * a.item()}, noisy(1.0, std=0.1)),
        "leave out float(), int() and .item()", None),
    "an option that is an argument": (lambda: propagate(lambda a, seed: a * seed, x, seed=2),
        "seed is an option of propagate and an argument", None),
    "a method that is none": (lambda: propagate(torch.sin, x, method=by_words),
        "expected one of ap1, ap2, sample, local, controlled", None),
    "an accuracy below 0": (lambda: propagate(torch.sin, x, rtol=0.0),
        "expected rtol, a relative error, above 0", None),
    "an event across examples": (
        lambda: propagate(torch.sin, noisy(torch.ones(3, 2), std=0.1)).probability(lambda y: y[1] > y[0]),
        "An output of an example is y[..., 1]", None),
    "a seed below 0": (lambda: propagate(torch.sin, x, seed=-1), "expected a whole number of at least 0", None),
    "a question to what was computed of a result": (lambda: (propagate(torch.sin, x) + 1).interval(0.9),
        "belongs into the call: momentgen.propagate(lambda x: net(x) + 1, x)", None),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistaken_call_is_told_what_to_type(name: str) -> None:
    call, said, advice = MISTAKES[name]
    with pytest.raises((InputError, AttributeError), match=re.escape(said)) as raised:
        call()
    if advice is not None:
        known = {"momentgen": momentgen, "torch": torch, "x": x, "y": y, "c": c, "net": net, "f": torch.sin}
        told = str(raised.value).replace("convert(network)", "convert(net)")
        assert advice in told or advice in ("x.var", "x.std")
        assert eval(advice, known) is not None


def test_a_result_of_math_that_does_not_depend_on_the_noise_is_no_mistake() -> None:
    out = propagate(lambda a: {"sum": a + math.pi, "constant": math.pi}, noisy(1.0, std=0.1))
    assert out["constant"] == math.pi
    assert isinstance(out["sum"], Moments)


# Functions that the deterministic methods refuse in one sentence, and that the default runs: σ against draws.
def given() -> Moments:
    draw = torch.Generator().manual_seed(3)
    mean = torch.randn(2, 12, dtype=torch.float64, generator=draw)
    return Moments(mean, 0.1 * torch.rand(mean.shape, dtype=torch.float64, generator=draw) + 0.01)


def fixed(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


_GRID, _ROWS, _COLUMNS = fixed(1, 2, 2, 2).tanh(), fixed(1, 4, 3), (fixed(12, 4), fixed(4, 2))
_FILTER = torch.view_as_complex(fixed(7, 2))
#: name of the refused function, and what is special -> a function of a batch of twelve values
REFUSED: dict[str, Callable[[Any], Any]] = {
    "rfft": lambda x: torch.view_as_real(torch.fft.rfft(x)),
    "rfft, a filter": lambda x: torch.fft.irfft(torch.fft.rfft(x) * _FILTER, n=12),
    "rfft, sizes": lambda x: torch.fft.rfft(x).abs(),
    "fft2": lambda x: torch.fft.fft2(x.view(-1, 3, 4)).real,
    "ifftn": lambda x: torch.fft.ifftn(x.view(-1, 3, 4), dim=(1, 2)).imag,
    "complex": lambda x: torch.complex(x, 2 * x).abs(),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(-1, 6, 2)).abs(),
    "gradient": lambda x: torch.gradient(x, dim=1)[0],
    "trapezoid": lambda x: torch.trapezoid(x, dim=1)[:, None],
    "cumulative_trapezoid": lambda x: torch.cumulative_trapezoid(x, dim=1),
    "grid_sample": lambda x: F.grid_sample(x.view(-1, 1, 3, 4), _GRID.expand(len(x), -1, -1, -1), align_corners=False),
    "affine_grid": lambda x: F.affine_grid(x.view(-1, 2, 2, 3)[:, 0], [len(x), 1, 2, 2], align_corners=True),
    "cross": lambda x: torch.linalg.cross(x.view(-1, 4, 3), _ROWS),
    "kron": lambda x: torch.kron(x, _GRID[0, 0, :1]),
    "linalg_multi_dot": lambda x: torch.linalg.multi_dot([x, *_COLUMNS]),
    "cumprod": lambda x: torch.cumprod(x, 1),
    "prod": lambda x: x[:, :3].prod(1, keepdim=True),
    "diff": lambda x: torch.diff(x, dim=1),
    "cdist": lambda x: torch.cdist(x.view(-1, 4, 3), _ROWS)[:, 0],
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
    "lp_pool1d": lambda x: F.lp_pool1d(x[:, None], 2, 3)[:, 0],
    "bilinear": lambda x: F.bilinear(x, x, torch.eye(12).double()[None]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_deterministic_method_names_the_function_the_line_and_the_default(name: str, method: Any) -> None:
    own = name.split(",")[0]
    sentence = rf"{own} of a random value, \w+ of shape .*, at .*\.py:\d+: .*controlled, the default .*/networks/"
    with pytest.raises(UnsupportedError, match=sentence):
        momentgen.convert(Of(REFUSED[name]).eval(), method)(given())


@pytest.mark.parametrize("name", REFUSED)
def test_the_default_has_sigma_of_draws(name: str) -> None:
    x, function = given(), REFUSED[name]
    with momentgen.method("controlled", max_rows=1024):
        found = momentgen.convert(Of(function).eval())(x)
    noise = torch.randn(40_000, *x.mean.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn = function((x.mean + x.std * noise).flatten(0, 1)).unflatten(0, (40_000, -1))
    allowed = 0.02 * drawn.std(0) + 5 * found.std_error + 1e-6
    assert ((found.std - drawn.std(0)).abs() <= allowed).all()
    assert ((found.mean - drawn.mean(0)).abs() <= 0.03 * drawn.std(0) + 5 * found.mean_error + 1e-12).all()


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "cumprod"])
def test_certain_values_have_the_functions_own_result(name: str) -> None:
    x, function = given(), REFUSED[name]
    out = momentgen.convert(Of(lambda pair: (pair[0] * 2, function(pair[1]))).eval(), "ap2")((x, x.mean))
    torch.testing.assert_close(out[1].mean, function(x.mean))
    assert not out[1].var.any()


#: functions that make complex values of real ones, in several kinds of the table
TO_COMPLEX: dict[str, Callable[[Any], Any]] = {
    "fft": torch.fft.fft, "times 1j": lambda x: x * 1j, "complex": lambda x: torch.complex(x, x),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(-1, 6, 2)), "to": lambda x: x.to(torch.complex128),
    "polar": lambda x: torch.polar(x, x), "cfloat": lambda x: x.cfloat(),
}  # fmt: skip


@pytest.mark.parametrize("name", TO_COMPLEX)
def test_complex_values_are_refused_with_what_the_default_wants(name: str, method: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"controlled.*outputs are real: return torch\.view_as_real"):
        momentgen.convert(Of(TO_COMPLEX[name]).eval(), method)(given())
    found = momentgen.convert(Of(lambda x: torch.view_as_real(TO_COMPLEX[name](x))).eval())(given())
    assert found.mean.shape[-1] == 2


# What depends on the value that is drawn is refused: by name, with the law, the module and the line.
_W = torch.ones(3, 3).double()

#: what is called -> the function that the error names
DECISIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "x > 0": (lambda x: x > 0, "gt"), "0 > x": (lambda x: x < 0, "lt"), "x >= 0": (lambda x: x >= 0, "ge"),
    "x < 0": (lambda x: x < 0, "lt"), "x <= 0": (lambda x: x <= 0, "le"), "x == 0": (lambda x: x == 0, "eq"),
    "x != 0": (lambda x: x != 0, "ne"), "torch.gt": (lambda x: torch.gt(x, _W), "gt"),
    "tensor > x": (lambda x: x < _W, "lt"), "isclose": (lambda x: torch.isclose(x, x), "isclose"),
    "allclose": (lambda x: torch.allclose(x, _W), "allclose"), "equal": (lambda x: torch.equal(x, _W), "equal"),
    "bool": (lambda x: bool(x), "bool"), "if": (lambda x: 1 if x.sum() else 2, "bool"),
    "not": (lambda x: not x, "bool"), "float": (lambda x: float(x.sum()), "float"),
    "int": (lambda x: int(x.sum()), "int"), "index": (lambda x: [1, 2][x.sum()], "index"),
    "complex": (lambda x: complex(x.sum()), "complex"), "item": (lambda x: x.sum().item(), "item"),
    "tolist": (lambda x: x.tolist(), "tolist"), "numpy": (lambda x: x.numpy(), "numpy"),
    "np.asarray": (lambda x: np.asarray(x), "array"), "in": (lambda x: 1.0 in x, "contains"),
    "argmax": (lambda x: x.argmax(-1), "argmax"), "argmin": (lambda x: torch.argmin(x), "argmin"),
    "argsort": (lambda x: x.argsort(), "argsort"), "topk": (lambda x: torch.topk(x, 2), "topk"),
    "sort": (lambda x: x.sort(), "sort"), "kthvalue": (lambda x: x.kthvalue(1), "kthvalue"),
    "median": (lambda x: x.median(), "median"), "mode": (lambda x: x.mode(), "mode"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"), "any": (lambda x: torch.any(x), "any"),
    "all": (lambda x: x.all(), "all"), "logical_not": (lambda x: x.logical_not(), "logical_not"),
    "~": (lambda x: ~x, "logical_not"), "&": (lambda x: x & x, "logical_and"), "sign": (lambda x: x.sign(), "sign"),
    "round": (lambda x: torch.round(x), "round"), "floor": (lambda x: x.floor(), "floor"),
    "ceil": (lambda x: x.ceil_(), "ceil"), "trunc": (lambda x: torch.trunc(x), "trunc"),
    "//": (lambda x: x // 2, "floor_divide"), "reflected //": (lambda x: 2 // x, "floor_divide"),
    "%": (lambda x: x % 2, "remainder"), "fmod": (lambda x: torch.fmod(x, 2), "fmod"),
    "div, rounded": (lambda x: torch.div(x, 2, rounding_mode="floor"), "div"), "long": (lambda x: x.long(), "long"),
    "to an integer": (lambda x: x.to(torch.int64), "to"), "to bool": (lambda x: x.bool(), "bool"),
    "type": (lambda x: x.type(torch.int32), "type"),
    "searchsorted": (lambda x: torch.searchsorted(torch.arange(3.0).double(), x), "searchsorted"),
    "bucketize": (lambda x: torch.bucketize(x, torch.arange(3.0).double()), "bucketize"),
    "multinomial": (lambda x: torch.multinomial(x, 1), "multinomial"), "unique": (lambda x: torch.unique(x), "unique"),
    "cummax": (lambda x: x.cummax(0), "cummax"), "histc": (lambda x: torch.histc(x), "histc"),
    "count_nonzero": (lambda x: x.count_nonzero(), "count_nonzero"),
    "max(dim).indices": (lambda x: x.max(1).indices + 1, "argmax"),
    "max(dim).indices, compared": (lambda x: x.max(1).indices == 1, "argmax"),
    "max(dim)[1]": (lambda x: x.max(dim=-1)[1].float(), "argmax"),
    "min(dim).indices in a function": (lambda x: torch.gather(_W, 1, torch.min(x, 1).indices), "argmax"),
    "max(dim).indices as an index": (lambda x: _W[x.max(1).indices], "argmax"),
    "an index of a tensor": (lambda x: _W[x], "getitem"), "an index of a law": (lambda x: x[x], "getitem"),
    "one of several indices": (lambda x: _W[0, x], "getitem"), "gather": (lambda x: torch.gather(_W, 1, x), "gather"),
    "gather of a law": (lambda x: x.gather(1, x), "gather"),
    "index_select": (lambda x: torch.index_select(_W, 0, x[0]), "index_select"),
    "embedding": (lambda x: F.embedding(x, _W), "embedding"),
    "a condition": (lambda x: torch.where(x, 1.0, 0.0), "where"),
    "a mask": (lambda x: _W.masked_fill(x, 0.0), "masked_fill"),
    "scatter": (lambda x: _W.scatter(1, x, 0.0), "scatter"), "a random exponent": (lambda x: _W**x, "pow"),
    "a random exponent of a number": (lambda x: 2**x, "pow"), "torch.pow of two": (lambda x: torch.pow(x, x), "pow"),
    "an odd exponent": (lambda x: x**0.3, "pow"), "a random bound": (lambda x: _W.clamp(min=x), "clamp"),
    "log": (lambda x: x.log(), "log"), "log1p": (lambda x: torch.log1p(x), "log1p"),
    "logsumexp": (lambda x: x.logsumexp(-1), "logsumexp"), "tan": (lambda x: torch.tan(x), "tan"),
    "torch.tensor": (lambda x: torch.tensor(x.sum()), ""), "format": (lambda x: f"{x.sum():.2f}", ""),
    "math.sqrt": (lambda x: math.sqrt(x.sum()), "float"), "torch.linalg.det": (lambda x: torch.linalg.det(x), "det"),
    "torch.linalg.svd": (lambda x: torch.linalg.svd(x), "svd"),
    "torch.linalg.inv": (lambda x: torch.linalg.inv(x), "inv"), "cumprod": (lambda x: x.cumprod(0), "cumprod"),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2])), "cross_entropy"),
    "grid_sample": (lambda x: F.grid_sample(_W.view(1, 1, 3, 3), x.view(1, 1, 1, 9)[..., :2]), "grid_sample"),
    "stft": (lambda x: x[0].stft(2, window=torch.ones(2), return_complex=True), "stft"),
    "exponential_": (lambda x: x.exponential_(), "exponential_"),
}  # fmt: skip


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_names_function_law_module_and_line(name: str) -> None:
    call, function = DECISIONS[name]
    network = Of(lambda net, x: net.inner(x), inner=torch.nn.Sequential(torch.nn.Identity(), Of(call)))
    with pytest.raises(UnsupportedError) as caught:
        network(law_of(normal_input(3, 3)))
    text = str(caught.value)
    assert function in text.split(" of a random value")[0]
    assert "Diagonal of shape (" in text
    assert "in inner.1 (Of)" in text
    line = inspect.getsourcelines(call)[1]
    assert f"{__file__}:{line}:" in text


@pytest.mark.parametrize("name", UNDEFINED)
def test_functions_that_are_not_defined_everywhere_are_refused(name: str) -> None:
    space = torch if hasattr(torch, name) else torch.special
    with pytest.raises(UnsupportedError, match=rf"{name} of a random value, Diagonal.*{re.escape(__file__)}"):
        getattr(space, name)(law_of(normal_input(3)))


def test_a_decision_says_what_to_do_instead_and_outside_of_a_module_the_line_alone() -> None:
    with pytest.raises(UnsupportedError, match="depends on the value that is drawn; the method controlled") as caught:
        law_of(normal_input(3)).argmax()
    assert re.search(rf", at {re.escape(__file__)}:\d+", str(caught.value))
    assert ", in " not in str(caught.value)


def test_a_point_decides_as_its_tensor_does() -> None:
    x = normal_input(3).mean
    law = point(x)
    assert torch.equal(law > 0, x > 0)
    assert torch.equal(law.argmax().value if hasattr(law.argmax(), "value") else law.argmax(), x.argmax())
    assert float(law[0]) == float(x[0])
    assert law.tolist() == x.tolist()
    assert bool(law[0] > 0) == bool(x[0] > 0)
    assert torch.equal(law.max(0).values.value, x.max())
    assert torch.equal(_W[law.max(0).indices], _W[x.max(0).indices])


def test_the_values_of_a_maximum_may_be_used() -> None:
    found = law_of(normal_input(3, 3)).max(1)
    assert (found.values * 2).shape == (3,)
    assert found[0].shape == (3,)
    values, _ = found
    assert values.shape == (3,)

"""What depends on the value that is drawn is refused: by name, with the law, the module and the line."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from laws.small_networks import Of
from sampling import law_of, normal_input

from momentgen.errors import UnsupportedError
from momentgen.laws import point
from momentgen.laws.activations import UNDEFINED

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

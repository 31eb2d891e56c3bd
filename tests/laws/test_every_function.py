"""Every call of :mod:`fuzz.functions` alone: by ``ap2`` against torch's Jacobian, an integral or draws; on points."""

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from fuzz.functions import TEMPLATES, Template
from fuzz.generate import _Maker
from laws import linear_cases
from laws.sampled_cases import APPROXIMATE, EXACT
from sampling import assert_agrees, law_of, moments_of, normal_input
from torch import Tensor

from momentgen.laws import Diagonal, point
from momentgen.laws.activations import BY_FUNCTION
from momentgen.laws.diagonal import Point
from momentgen.laws.law import rule_of
from momentgen.runtime import Moments

#: effects of calls that are linear in their operands together
LINEAR = ("scaled", "moved", "repeated", "together", "masked", "linear", "add")
#: functions with a jump, of which an integral by a grid is off
JUMPS = ("threshold", "hardshrink")
#: effect of calls that are compared with draws -> the bias allowed, as :class:`laws.sampled_cases.Case` has it
SAMPLED: dict[str, tuple[float, float] | None] = {
    **dict.fromkeys(("mul", "larger", "product", "gated")),
    "largest": (0.005, 0.006),
    "joint": (0.02, 0.04),  # of two values; of more it is less
    "statistic": (0.05, 0.08),  # likewise
}
#: in calls that have no rule for these values, or round, or whose draws have too heavy tails
WITHOUT_RULE = (
    "complex(",
    "** 0.3",
    ".float()",
    "inner({whole}, {whole})",
    "rank}",
    "logsumexp",
    "{whole}.prod()",
    "{w}({x}, {y})",
)


class Call(NamedTuple):
    """A call of torch on operands of these shapes, made with these options of :func:`sampling.normal_input`."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    options: tuple[tuple[str, Any], ...] = ()


@cache
def made(name: str, template: Template | Call) -> Call:
    """The call of the first seed whose values the template fits, its operands apart."""
    if isinstance(template, Call):
        return template
    with torch.no_grad(), torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(400):
            maker = _Maker(seed)
            maker.randomised = None
            maker.inputs("float64")
            torch.manual_seed(seed)
            before = len(maker.steps)
            maker.attempt(name, template)
            if len(maker.steps) == before or len(set(maker.steps[-1].operands)) != len(maker.steps[-1].operands):
                continue
            step, scope = maker.steps[-1], maker.scope
            for part in vars(maker.parts).values():
                if isinstance(part, torch.nn.Module):
                    part.eval()

            def function(*values: Any, step: Any = step, scope: dict[str, Any] = scope) -> Any:
                own = {**scope, **dict(zip(step.operands, values, strict=True))}
                exec("\n".join(step.lines), own)
                return own[step.value.name]

            shapes = {value.name: value.shape for value in maker.values}
            return Call(function, tuple(shapes[operand] for operand in step.operands))
    raise AssertionError(f"no seed fits {template.text}")


def calls(*effects: str) -> list[Any]:
    """Calls of these effects of all functions that ``Diagonal`` has a rule for."""
    return [
        pytest.param(name, template, id=f"{name}: {template.text}")
        for kind, known in TEMPLATES.items()
        for name, templates in known.items()
        if rule_of(Diagonal, name, kind) is not None
        for template in templates
        if template.effect in effects and not any(text in template.text for text in WITHOUT_RULE)
    ]


def written(*tables: Mapping[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]]) -> list[Any]:
    """The calls of tables that are written out."""
    return [pytest.param(name, Call(*row), id=name) for table in tables for name, row in table.items()]


def inputs(call: Call) -> list[Moments]:
    return [normal_input(*shape, seed=seed, **dict(call.options)) for seed, shape in enumerate(call.shapes)]


@pytest.mark.parametrize(("name", "template"), [*calls(*LINEAR), *written(linear_cases.LINEAR, linear_cases.MOVED)])
def test_what_is_linear_has_the_mean_of_torch_and_the_variance_of_its_jacobian(name: str, template: Any) -> None:
    call = made(name, template)
    given = inputs(call)
    with torch.no_grad():
        found = moments_of(call.function(*map(law_of, given)), False)
        origin = call.function(*(torch.zeros_like(x.mean) for x in given))
        want = torch.zeros_like(origin)
        for place, x in enumerate(given):
            for unit, var in zip(torch.eye(x.mean.numel()).double(), x.var.reshape(-1), strict=True):
                own = [torch.zeros_like(other.mean) for other in given]
                own[place] = unit.view(x.mean.shape)
                want = want + (call.function(*own) - origin).square() * var
    torch.testing.assert_close(found.mean, call.function(*(x.mean.clone() for x in given)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.var, want, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("name", "template"), calls("pointwise"))
def test_a_function_of_one_value_has_the_moments_of_an_integral(name: str, template: Template) -> None:
    call = made(name, template)
    (x,) = inputs(call)
    places = torch.linspace(-8, 8, 641, dtype=torch.float64)
    weights = torch.exp(-places.square() / 2)
    weights = weights / weights.sum()
    with torch.no_grad():
        found = moments_of(call.function(law_of(x)), False)
        values = torch.stack([call.function(x.mean + x.var.sqrt() * place) for place in places])
    mean = torch.tensordot(weights, values, 1)
    std = torch.tensordot(weights, (values - mean).square(), 1).sqrt()
    off = 0.02 if name in JUMPS or name not in BY_FUNCTION else 1e-3
    assert ((found.mean - mean).abs() <= off * std + 1e-12).all()
    torch.testing.assert_close(found.var.sqrt(), std, rtol=off, atol=1e-12)


@pytest.mark.parametrize(("name", "template"), calls(*SAMPLED))
def test_a_function_of_several_values_has_the_moments_of_draws(name: str, template: Template) -> None:
    call = made(name, template)
    assert_agrees(call.function, *inputs(call), bias=SAMPLED[template.effect], batched=False, n=400_000)


#: calls of random values whose draws are compared elsewhere
_SAMPLED = {
    f"{kind} {name}": (case.function, case.shapes, case.options)
    for kind, table in (("exact", EXACT), ("approximate", APPROXIMATE))
    for name, case in table.items()
    if not case.noise
}


@pytest.mark.parametrize(
    ("name", "template"),
    [
        *calls(*LINEAR, "pointwise", "mul", "larger", "product", "largest", "statistic", "joint"),
        *written(linear_cases.LINEAR, linear_cases.MOVED, _SAMPLED),
    ],
)
def test_a_point_has_the_result_of_the_plain_function_bit_for_bit(name: str, template: Any) -> None:
    call = made(name, template)
    given: list[Tensor] = [x.mean for x in inputs(call)]
    with torch.no_grad():
        found, want = call.function(*(point(x.clone()) for x in given)), call.function(*(x.clone() for x in given))
    for got, plain in zip(*(part if isinstance(part, tuple) else (part,) for part in (found, want)), strict=True):
        assert isinstance(got, Point)
        assert torch.equal(got.value.nan_to_num(7.5), plain.nan_to_num(7.5))

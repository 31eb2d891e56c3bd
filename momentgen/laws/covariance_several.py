"""Rules of ``Covariance`` for functions of several values at once: products, norms, softmax, maxima, attention.

Products of two laws are exact where they are taken value by value.  Every other function that ``Diagonal`` has a rule
for has its mean from there, covariances by the Jacobian of that mean, and on the diagonal what of that rule's variance
the Jacobian does not explain.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws.activations import generated_op
from momentgen.laws.chains import leads_to_chain, start_of
from momentgen.laws.covariance import Covariance, covariance, symmetric
from momentgen.laws.covariance_graph import Node, Push, current
from momentgen.laws.covariance_linear import (
    all_replaced,
    by_rows,
    certain_as_tensor,
    linear_of,
    of_diagonal,
    random_in,
    room,
    times,
)
from momentgen.laws.diagonal import Diagonal, diagonal
from momentgen.laws.law import Law, Rule, remember, tensor_of
from momentgen.laws.notes import note
from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.numerics.pairs import PairOp
from momentgen.laws.numerics.root import square_root
from momentgen.laws.point import Point
from momentgen.laws.products import _spelled
from momentgen.laws.source import common_source, is_pointwise, out_of_place, start_of_both, value_at
from momentgen.laws.table import TABLE, Entry
from momentgen.laws.unsupported import unsupported

__all__ = ["RULES", "by_jacobian", "products"]


def _results(found: Any) -> Iterator[Diagonal]:
    for item in found if isinstance(found, tuple | list) else (found,):
        if isinstance(item, Diagonal):
            yield item


def function_of(
    entry: Entry,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    start: Covariance,
    terms: int | None = None,
    exact: PairOp | None = None,
) -> Covariance:
    """A call as one function of the values of ``start``, of which the laws among its arguments are functions.

    Args:
        entry: of the function.
        args: of the call.
        kwargs: of the call.
        start: the value.
        terms: of the Hermite sum; None for as many as the run is set to.
        exact: the covariance of the function of two values.
    """
    if any(value is not start for value in random_in(args, kwargs)):
        terms = min(2, current().terms)  # a chain: not all functions of torch can be differentiated three times

    def function(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        x = diagonal(mean, var)
        own, named = all_replaced(args, kwargs, lambda law: value_at(law, start, x))
        found = out_of_place(entry, own, named)
        return cast(tuple[Tensor, Tensor], found._parts())

    return cast(Covariance, remember(start.by_moments(function, terms, exact), entry, args, kwargs, start))


def start_together(entry: Entry, a: Any, b: Any) -> Covariance | None:
    """The value of which both are functions, element by element; None if they are not, or are not both random."""
    if not isinstance(a, Covariance) or not isinstance(b, Covariance):
        return None
    source = common_source(a, b)
    if source is None or not (is_pointwise(a, source) and is_pointwise(b, source)):
        return None
    return cast(Covariance, start_of_both(a, b, source))


def note_curved(entry: Entry, x: Covariance, y: Covariance) -> None:
    """Say so where two functions of one value meet in several places: they are taken as jointly normal."""
    if common_source(x, y) is not None and (leads_to_chain(x) or leads_to_chain(y)):
        note(f"{entry.name}: functions of one value, moved, are taken as jointly normal")


def by_jacobian(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The mean of ``Diagonal``'s rule, covariances by its Jacobian, the rest of the rule's variance on the diagonal."""
    rule, laws = of_diagonal(entry), random_in(args, kwargs)
    # The maps must not keep the laws alive, whose covariances are let go when nobody can ask for them.
    alone = {id(law): diagonal(law._mean, law._var) for law in laws}
    args, kwargs = all_replaced(args, kwargs, lambda law: alone.get(id(law), law))
    inputs = list(alone.values())
    kept: list[Any] = []

    def moments(*means: Tensor) -> tuple[Tensor, Tensor]:
        known = {id(law): diagonal(mean, law._var) for law, mean in zip(inputs, means, strict=True)}
        own, named = all_replaced(args, kwargs, lambda law: known.get(id(law), law))
        found = rule(entry, own, named)
        parts = [law._parts() for law in _results(found)]
        kept[:] = [found]
        return tuple(torch.cat([part[k].reshape(-1) for part in parts]) for k in (0, 1))  # type: ignore[return-value]

    mean, var = moments(*[law._mean for law in inputs])
    found = kept[0]
    room(entry, mean)

    def tangent(place: int, row: Tensor) -> Tensor:
        def of_one(value: Tensor) -> Tensor:
            return moments(*[value if k == place else law._mean for k, law in enumerate(inputs)])[0]

        jvp: Any = torch.func.jvp
        return cast(Tensor, jvp(of_one, (inputs[place]._mean,), (row,))[1])

    parts: list[tuple[Covariance, Push | None]] = [
        (law, by_rows(functools.partial(tangent, place), law.shape, _rows_at_once(law, mean)))
        for place, law in enumerate(laws)
    ]
    explained: Tensor | None = None
    for law, push in parts:
        columns = cast(Push, push)(torch.diag_embed(square_root(law._var).reshape(-1)))
        own = columns.square().sum(0)
        explained = own if explained is None else explained + own
    rest = at_least(var - cast(Tensor, explained), 0)
    whole = linear_of(entry, mean, parts, rest)
    if isinstance(found, Diagonal):
        return whole.view(found.shape)
    pieces = iter(whole.split([law.numel() for law in _results(found)]))
    items = [next(pieces).view(item.shape) if isinstance(item, Diagonal) else item for item in found]
    return type(found)(*items) if hasattr(found, "_fields") else type(found)(items)


#: numbers that a rule holds at once for each value of its argument, such as nodes of an integral
_NODES = 64


def _rows_at_once(law: Covariance, out: Tensor) -> int:
    run = current()
    each = (law.numel() + out.numel()) * out.dtype.itemsize * _NODES * run.batch
    return max(1, min(law.numel(), run.memory // each))


# ------------------------------------------------------------------- products


def products(entry: Entry, x: Any, y: Any) -> Any:
    """Products of jointly normal values, exactly.

    With covariances C and D, and K between the two, the mean is m₁m₂ + diag K and the covariance
    m₂m₂ᵀ∘C + m₁m₁ᵀ∘D + m₂m₁ᵀ∘K + (m₂m₁ᵀ∘K)ᵀ + C∘D + K∘Kᵀ.
    """
    shape = torch.broadcast_shapes(x.shape, y.shape)
    room(entry, x._mean.expand(shape))
    x, y = (law if law.shape == shape else law.expand(shape) for law in (x, y))
    m1, m2 = x._mean.reshape(-1), y._mean.reshape(-1)
    C, D, K = x.cov, y.cov, current().cross(x.node, y.node)
    mean = x._mean * y._mean
    cov = m2[:, None] * m2 * C + m1[:, None] * m1 * D + C * D
    if K is not None:
        mean = mean + K.diagonal().view(shape)
        linear = m2[:, None] * m1 * K
        cov = cov + linear + linear.mT + K * K.mT
    return covariance(mean, Node(symmetric(cov), [(x.node, times(m2)), (y.node, times(m1))]))


def _product(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = all_replaced(args, kwargs, certain_as_tensor)
    if entry.name == "einsum" and len(args) == 2 and type(args[1]) in (tuple, list):
        args = (args[0], *args[1])
    if entry.name == "rmatmul":
        args, entry = (args[1], args[0], *args[2:]), TABLE[torch.matmul]
    places = [place for place, value in enumerate(args) if isinstance(value, Covariance)]
    count = len(places) + len(random_in((), kwargs))
    if kwargs and count > len(places):
        return by_jacobian(entry, args, kwargs)  # a factor by its name
    if entry.name == "bilinear" and count > 1:
        return by_jacobian(entry, args, kwargs)
    if count > 2 or (entry.name == "einsum" and not isinstance(args[0], str)):
        raise unsupported(entry.call, args[places[0]], "an equation of up to two random operands has a rule", entry)
    means = [tensor_of(value) for value in args]

    def call(values: dict[int, Tensor], bias: bool = False) -> Tensor:
        own = [values.get(place, value) for place, value in enumerate(means)]
        if entry.name == "bilinear" and not bias:
            own = own[:3]
        return cast(Tensor, entry.call(*own, **kwargs))

    def alone(place: int, row: Tensor) -> Tensor:
        return call({place: row})

    mean = call({}, bias=True)
    room(entry, mean)
    laws = [args[place] for place in places]
    parts: list[tuple[Covariance, Push | None]] = [
        (law, by_rows(functools.partial(alone, place), law.shape)) for place, law in zip(places, laws, strict=True)
    ]
    if len(laws) == 1:
        return linear_of(entry, mean, parts)
    x, y = laws
    note_curved(entry, x, y)
    both = current().cross(x.node, y.node)
    if both is None:
        return linear_of(entry, mean, parts, call({places[0]: x._var, places[1]: y._var}).reshape(-1))

    def met(row: Tensor, other: Tensor) -> Tensor:
        return call({places[0]: row.view(x.shape), places[1]: other.view(y.shape)}).reshape(-1)

    # E of the product of the deviations: each value of x with what it has to do with y
    unit = torch.eye(x.numel(), dtype=mean.dtype, device=mean.device)
    chunk = _rows_at_once(x, mean)
    mean = mean + torch.vmap(met, chunk_size=chunk)(unit, both.contiguous()).sum(0).view(mean.shape)
    own = _of_pairs(met, x.cov, y.cov, both, mean.numel())
    if own is None:
        note(f"{entry.name}: of a product of values that have much in common, to second order in what is random")
        own = call({places[0]: x._var, places[1]: y._var}).reshape(-1)
    return linear_of(entry, mean, parts, own)


def _of_pairs(met: Any, of_x: Tensor, of_y: Tensor, both: Tensor, outputs: int) -> Tensor | None:
    """Covariance of the products of the deviations; None where that takes more memory than allowed.

    With A_o the coefficients of an output, that of two is Σ A_okl A_pmn (C_km D_ln + K_kn K_ml): over all pairs (k, l),
    A_okl times A_p of the rows k of C and l of D, and of the column l and the row k of K.

    Args:
        met: the products of two rows of values, summed up into the outputs.
        of_x: covariance of the first factor, shape ``(N, N)``.
        of_y: covariance of the second, shape ``(M, M)``.
        both: of the first with the second, shape ``(N, M)``.
        outputs: how many there are.
    """
    run, (n, m) = current(), both.shape
    if 4 * n * m * (outputs + n + m) * both.dtype.itemsize * run.batch > run.memory:
        return None
    first = torch.arange(n, device=both.device).repeat_interleave(m)
    second = torch.arange(m, device=both.device).repeat(n)
    pairs = torch.vmap(met)
    unit = torch.eye(max(n, m), dtype=both.dtype, device=both.device)
    coefficients = pairs(unit[first, :n], unit[second, :m])
    others = pairs(of_x[first], of_y[second]) + pairs(both.mT[second], both[first])
    return symmetric(coefficients.mT @ others)


def _einsum(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = list(operands[0])
    if isinstance(equation, str) and len(operands) == 2 and all(isinstance(value, Covariance) for value in operands):
        # Values of one operand that meet one of the other together are added first, so that each pair is met once.
        (a, b), out = _spelled(equation, operands)
        x, y = operands
        for alone in set(a) - set(b) - set(out):
            x, a = x.sum(a.index(alone)), a.replace(alone, "")
        for alone in set(b) - set(a) - set(out):
            y, b = y.sum(b.index(alone)), b.replace(alone, "")
        return _product(entry, (f"{a},{b}->{out}", x, y), kwargs)
    return _product(entry, (equation, *operands), kwargs)


# -------------------------------------------------------------------- maxima


def _maximum(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    second = kwargs.get("other", args[1] if len(args) > 1 else None)
    if "pool" in entry.name or not isinstance(second, Law | Tensor) or entry.name in ("amax", "amin"):
        return by_jacobian(entry, args, kwargs)
    x: Any = args[0]._form() if isinstance(args[0], Point) else args[0]
    y: Any = second._form() if isinstance(second, Point) else second
    lower = "min" in entry.name
    start = start_together(entry, x, y)
    if start is not None and (start_of(x) is not None or start_of(y) is not None):
        return function_of(Entry(entry.name, "arithmetic", entry.call), (x, y), {}, start)
    if not isinstance(x, Covariance) or not isinstance(y, Covariance):
        law, other = (x, y) if isinstance(x, Covariance) else (y, x)
        return other - torch.relu(other - law) if lower else other + torch.relu(law - other)
    if lower:
        return -_larger(entry, -x, -y)  # type: ignore[operator]
    return _larger(entry, x, y)


def _larger(entry: Entry, x: Any, y: Any) -> Any:
    """The larger of two jointly normal values: mean and variance exactly, covariances by the expected slopes."""
    shape = torch.broadcast_shapes(x.shape, y.shape)
    room(entry, x._mean.expand(shape))
    x, y = (law if law.shape == shape else law.expand(shape) for law in (x, y))
    both = current().cross(x.node, y.node)
    together = torch.zeros_like(x._mean) if both is None else both.diagonal().view(shape)
    op = generated_op("maximum_correlated", entry.name)
    vjp: Any = torch.func.vjp
    mean, pull, var = vjp(lambda m1, m2: tuple(op(m1, x._var, m2, y._var, together)), x._mean, y._mean, has_aux=True)
    slopes = pull(torch.ones_like(mean))
    law = linear_of(entry, mean, [(x, times(slopes[0])), (y, times(slopes[1]))])
    rest = at_least(var.reshape(-1) - law.cov.diagonal(), 0)
    node = Node(law.cov + torch.diag_embed(rest), law.node.parents)
    return covariance(mean, node)


#: rules of Covariance, by name and kind
RULES: dict[str, Rule] = {
    "product": _product,
    "einsum": _einsum,
    "maximum": _maximum,
    "normalise": by_jacobian,
    "softmax": by_jacobian,
    "statistic": by_jacobian,
    "scaled_dot_product_attention": by_jacobian,
}

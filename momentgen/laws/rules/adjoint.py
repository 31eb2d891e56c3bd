"""Rules of ``Adjoint``: those of ``Diagonal``, with the sources of randomness that each function adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws import noise
from momentgen.laws.activations import BY_FUNCTION, SWITCHES
from momentgen.laws.adjoint import Adjoint, along, foreign, with_own
from momentgen.laws.affine import dense, pooled_to_one
from momentgen.laws.arguments import rebuilt
from momentgen.laws.attention import gram
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.expressions import chained, settle
from momentgen.laws.history import await_writes
from momentgen.laws.law import DEPTH, History, Law, Rule, laws_in, new_law, remember, rule_of
from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.numerics.dust import without_dust
from momentgen.laws.numerics.forward import forward_derivative
from momentgen.laws.probes import Probes, give_probes, probes_along, probes_of
from momentgen.laws.registered import REGISTERED
from momentgen.laws.rules.adjoint_maxima import maximum
from momentgen.laws.rules.composite import attention_by_parts
from momentgen.laws.rules.elementwise import op_and_parameters
from momentgen.laws.rules.maxima import is_monotone
from momentgen.laws.rules.products import bilinear_remainder
from momentgen.laws.slopes import slope_of
from momentgen.laws.sources import SOURCES, constant, stopped
from momentgen.laws.table import KINDS, Entry

__all__ = []


def _rule(name: str, kind: str) -> Rule:
    if kind == "maximum":
        return maximum

    def rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kind == "affine" and (dims := pooled_to_one(name, args, kwargs)) is not None:
            return args[0].mean(dims, keepdim=True)
        if name == "scaled_dot_product_attention" and noise.active(entry, args, kwargs):
            return attention_by_parts(entry, args, kwargs)  # its dropout is a source
        own, args = cast(Rule, rule_of(Diagonal, name, kind)), tuple(map(dense, args))
        for law in laws_in((*args, *kwargs.values())):
            if isinstance(law, Diagonal) and not isinstance(law, Adjoint):
                raise foreign(entry, law)
            if kind != "query" and law._history is not None and law._history.later not in (None, settle):
                law._parts()
        if kind in ("query", "refusal", "write"):
            return own(entry, args, kwargs)

        if kind == "pointwise" and isinstance(args[0], Diagonal):
            whole = chained(entry, args, kwargs)
            if whole is not None:
                return whole

        def found() -> Any:
            value = _of_constant(own, entry, args, kwargs) if kind == "pointwise" else own(entry, args, kwargs)
            value = _each(value, lambda law: _attached(law, own, entry, kind, args, kwargs))
            give_probes(value, entry, kind, args, kwargs)
            return value

        if kind == "pointwise" and _may_wait(entry, args, kwargs):
            return _deferred(found, entry, args, kwargs)
        return found()

    return rule


def _of_constant(own: Rule, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A pointwise function of ``args[0]`` with a mean that is a constant to the shifts: its slope comes by itself."""
    x = args[0]
    if type(x) is Adjoint and x._mean is not None:
        still = new_law(Adjoint, *map(constant, x._parts()))
        found = own(entry, (still, *args[1:]), kwargs)
        if type(found) is Diagonal and found._call is not None and found._call[0] is entry and found._of is still:
            found._history = None
            return remember(found, entry, args, kwargs, x)
    return own(entry, args, kwargs)


def _may_wait(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function's moments can be put off: where a max pool is next, they are not needed."""
    x = args[0]
    if type(x) is not Adjoint or x._mean is None or x._depth >= DEPTH or torch.compiler.is_compiling():
        return False
    return is_monotone(entry, args, kwargs)


def _deferred(compute: Callable[[], Law], entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Adjoint:
    """A function of ``args[0]`` that is computed when somebody asks for its moments."""
    x, with_gradients = args[0], torch.is_grad_enabled()
    law: Adjoint = new_law(Adjoint, None)  # type: ignore[arg-type]
    law._noise = Adjoint
    remember(law, entry, args, kwargs, x)
    await_writes(x, law)

    def later(pending: Law) -> None:
        with torch.set_grad_enabled(with_gradients):
            found = compute()
        (pending._mean, pending._var), pending._joint = found._parts(), found._joint

    law._history = cast(History, law._history)._replace(later=later)
    return law


#: kinds of functions of which some have a slope that takes less time than to differentiate them
_SLOPED = ("normalise", "softmax")


def _each(found: Any, function: Callable[[Diagonal], Any]) -> Any:
    if type(found) is Diagonal:
        return function(found)
    if isinstance(found, tuple | list):
        return rebuilt(found, [_each(part, function) for part in found])
    return found


def _attached(law: Diagonal, own: Rule, entry: Entry, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sources = SOURCES.get()
    mean, var = law._parts()
    var = constant(var)
    if kind == "pointwise" and type(args[0]) is Adjoint:
        gain = gain_of(args[0], entry, kind, args[1:], kwargs)
        if entry.name in SWITCHES:
            gain = without_dust(constant(gain))
        elif entry.name in _CLOSED:
            gain = _within(gain, args[0]._parts()[1], var)
        mean, var, law._joint = along(args[0], mean, var, gain)
    elif kind == "noise" and type(args[0]) is Adjoint:
        (given, spread), gain = args[0]._parts(), gain_of(args[0], entry, kind, args[1:], kwargs)
        added = at_least(var - gain.square() * spread, 0)
        mean = sources.shifted(constant(mean) + gain * (given - constant(given)), added)
        known = probes_of(args[0])
        law._joint = Probes(gain * known.rows + sources.moved(constant(added)), known.independent)
    elif kind == "statistic" and type(args[0]) is Adjoint:
        explained = _explained(args[0], entry, kind, args[1:], kwargs)
        left = at_least(var - explained, 0)
        mean = sources.shifted(mean, left)
        law._joint = with_own(probes_along(entry, args, kwargs, [args[0]]), left)
    elif kind in _SLOPED and (function := _slope(entry, args, kwargs, mean, var)) is not None:
        slope = function(args[0]._parts()[0])
        mean = constant(mean) + (slope - constant(slope))
    elif kind == "noise":
        mean = sources.shifted(mean, var)
    elif kind == "arithmetic" and entry.name == "mul" and law._source is None:
        random = [value for value in args if isinstance(value, Diagonal)]
        if len(random) == 2:
            (_, v1), (_, v2) = (value._parts() for value in random)
            left = (v1 * v2).expand(mean.shape)
            mean = sources.shifted(mean, left)
            law._joint = with_own(probes_along(entry, args, kwargs, random), left)
    elif kind == "product":
        mean = _with_products(law, own, entry, args, kwargs, mean)
    law.__class__ = Adjoint
    law._mean, law._var, law._noise = mean, var, Adjoint
    return law


def _slope(
    entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], mean: Tensor, spread: Tensor
) -> Callable[[Tensor], Tensor] | None:
    """A function with nearly the derivative of ``mean`` by that of the argument, which takes a small part of its time.

    Args:
        entry: of the function.
        args: of the call.
        kwargs: of the call.
        mean: of the result.
        spread: *variance* of the result.
    """
    if type(args[0]) is not Adjoint or len([law for law in laws_in((*args, *kwargs.values())) if law.RANK]) > 1:
        return None
    return slope_of(entry, args, kwargs, args[0]._parts()[1], constant(mean), spread)


def _with_products(
    law: Diagonal, own: Rule, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], mean: Tensor
) -> Tensor:
    """The mean of products of two laws, with the products of their deviations as a new source."""
    factors = [value for value in (*args, *kwargs.values()) if isinstance(value, Diagonal)]
    if len(factors) < 2:
        return mean
    laws = list({id(value): value for value in factors}.values())

    left = _deviations(own, entry, args, kwargs, laws)
    law._joint = with_own(probes_along(entry, args, kwargs, laws), left)
    return SOURCES.get().shifted(mean, left)


def _deviations(own: Rule, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], laws: list[Diagonal]) -> Tensor:
    """*Variance* of the products of two laws' deviations."""
    if entry.name == "bilinear":
        return bilinear_remainder(args, kwargs)
    # of means 0 the linear part is none
    alone = {id(x): new_law(Diagonal, torch.zeros_like(x._mean), x._parts()[1]) for x in laws}
    values = tuple(alone.get(id(value), value) for value in args)
    named = {name: alone.get(id(value), value) for name, value in kwargs.items()}
    found: Tensor = own(entry, values, named)._parts()[1]
    squares = gram(args[0], args[1]) if entry.name != "einsum" else None
    return found if squares is None else found + torch.diag_embed(squares.square().sum(-1))


def gain_of(x: Diagonal, entry: Entry, kind: str, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """E f': the derivative of the mean of a pointwise function by the mean of its input, the variance held fixed."""
    given, var = x._parts()
    if isinstance(x, Adjoint):
        given = constant(given)
    row = BY_FUNCTION.get(entry.name)
    if kind == "pointwise" and row is not None and entry.name != "square" and entry.name not in REGISTERED:
        op, params = op_and_parameters(row, rest, kwargs)
        return op.mean_gradients(given, var, **params)[0]
    own = rule_of(Diagonal, entry.name, kind)

    def mean(at: Tensor) -> Tensor:
        law: Diagonal = new_law(Diagonal, at, var)
        return own(entry, (law, *rest), kwargs)._parts()[0]  # type: ignore[misc]

    tangent: Tensor = forward_derivative(mean, [given], [torch.ones_like(given)])
    return tangent


#: functions whose rule assumes an argument that is not normal: the variance along the derivative may exceed the whole
_CLOSED = frozenset(("sqrt", "rsqrt", "reciprocal"))


def _within(gain: Tensor, spread: Tensor, var: Tensor) -> Tensor:
    """``gain``, less where its linear part would explain more than the whole *variance*."""
    explained = gain.square() * spread
    return gain * torch.where(explained > var, var / torch.where(explained > var, explained, 1), 1).sqrt()


def _explained(x: Diagonal, entry: Entry, kind: str, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """What the linear part explains of the *variance* of a function in which each value of ``x`` counts once."""
    (given, spread), own = x._parts(), rule_of(Diagonal, entry.name, kind)
    given = constant(given)

    def mean(at: Tensor) -> Tensor:
        found = own(entry, (new_law(Diagonal, at, spread), *rest), kwargs)  # type: ignore[misc]
        return cast(Tensor, (found[0] if isinstance(found, tuple) else found)._parts()[0])

    vjp: Any = torch.func.vjp
    out, pull = vjp(mean, given)
    slopes = pull(torch.ones_like(out))[0]
    tangent: Tensor = forward_derivative(mean, [given], [slopes * spread])
    return tangent.to(given.dtype)


class _Rules(dict[str, Rule]):
    """The rules of ``Diagonal``, also those that are registered later, each with its sources recorded."""

    def get(self, key: str, default: Any = None) -> Any:
        kind = _kind_of.get(key, key)
        if rule_of(Diagonal, key, kind) is None:
            return default
        if key not in self:
            self[key] = _rule(key, kind)
        return self[key]


_kind_of = {name: kind for kind, known in KINDS.items() for name in known}
Adjoint.RULES = _Rules()


def _detached(_: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``detach`` of a user's gradients, which leaves the derivatives by the shifts whole."""
    return _rule("detach", "movement")(_DETACH, args, kwargs)


_DETACH = Entry("detach", "movement", stopped)
Adjoint.RULES["detach"] = _detached


def _embedded(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``embedding`` without the arguments by which torch skips or weighs rows in gradients."""
    known = {name: value for name, value in kwargs.items() if name in ("input", "weight", "indices", "max_norm")}
    kept = args[:2] if entry.call is torch.embedding else (*args[:2], None, *args[3:4])
    return _rule("embedding", "movement")(entry, kept, known)


Adjoint.RULES["embedding"] = _embedded

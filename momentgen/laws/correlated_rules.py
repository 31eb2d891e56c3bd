"""Rules of ``Correlated``: one for functions of each value by itself, and one for all others.

Both stand on the rules of independent values.  Affine functions and movement have
:mod:`momentgen.laws.correlated_affine`, maxima :mod:`momentgen.laws.correlated_maximum`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws import affine, composite, noise
from momentgen.laws.activations import SWITCHES
from momentgen.laws.adjoint import gain_of
from momentgen.laws.correlated import (
    RUN,
    Correlated,
    Rows,
    correlated,
    deflated,
    exact,
    law_of,
    mixed,
    squared_length,
    with_history,
)
from momentgen.laws.correlated_affine import affine_rule, movement_rule
from momentgen.laws.correlated_calls import (
    Call,
    alone_of,
    arguments,
    by_rule,
    channel_of,
    marginals,
    random_in,
    remainder,
    split,
    stacked,
)
from momentgen.laws.correlated_maximum import maximum
from momentgen.laws.diagonal import Diagonal, diagonal
from momentgen.laws.law import Law, laws_in, tensor_of, tensors_of
from momentgen.laws.maxima import is_monotone
from momentgen.laws.numerics.dust import without_dust
from momentgen.laws.numerics.magnification import magnification, magnified, overall, reduced
from momentgen.laws.numerics.points import POINTS, standard_points
from momentgen.laws.numerics.root import square_root
from momentgen.laws.numerics.skewness import after_dropout, mixture, two_normals
from momentgen.laws.rules import diagonal_rule
from momentgen.laws.slopes import slope_of
from momentgen.laws.table import KINDS, Entry, names

__all__: list[str] = []


# --------------------------------------------------------------------- affine


def _affine(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if (dims := affine.pooled_to_one(entry.name, args, kwargs)) is not None:
        return x.mean(dims, keepdim=True)
    if not isinstance(x, Correlated) or len(random_in(args, kwargs)) > 1 or entry.name == "diff":
        return _general(entry, args, kwargs)
    return affine_rule(entry, args, kwargs)


# --------------------------------------------------------- each value by itself


def _elementwise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of each value by itself: its own rule is exact for a normal value, however values hang together."""
    x = args[0]
    if not isinstance(x, Correlated) or len(random_in(args, kwargs)) != 1:
        return _general(entry, args, kwargs)
    alone = by_rule(entry, args, kwargs, alone_of)
    if alone is x._joint.alone:
        return x
    rest, named = arguments(args[1:], kwargs, tensor_of)
    joint, mean, var = x._joint, x._mean, x._var
    third = joint.third
    if third is None:
        gain = gain_of(joint.alone, entry, entry.kind, rest, named)
    else:
        alone, gain = _of_skewed(entry, args, kwargs, alone)
        third = gain**3 * third
    if entry.name in SWITCHES:
        alone = with_history(diagonal(*map(without_dust, alone._parts())), alone)
        gain = without_dust(gain)
    monotone = (entry, args[1:], kwargs, law_of(mean, var, joint)) if is_monotone(entry, args, kwargs) else None
    found = alone._parts()

    def rows() -> tuple[Tensor, Tensor]:
        at = entry.call(mean, *rest, **named)
        factor = magnification([(mean.abs(), square_root(var))], (at.abs(), square_root(found[1])))
        samples = magnified(mean, joint.deviations, factor)
        if entry.name == "prelu":  # which has a channel dimension
            drawn = torch.vmap(lambda sample: entry.call(sample, *rest, **named))(samples)
        else:
            drawn = entry.call(samples, *rest, **named)
        return gain * joint.tangents, reduced(drawn, at, found[0], factor)

    explained = gain.square() * joint.explained
    return exact(alone, Rows(rows), explained, independent=joint.independent, monotone=monotone, third=third)


def _of_skewed(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], alone: Diagonal) -> tuple[Diagonal, Tensor]:
    """What a function makes of each value that is skewed, and its expected slope.

    Its history, and so what functions of one value later make of it, is that of a normal one, ``alone``.
    """
    x = args[0]
    rest, named = arguments(args[1:], kwargs, tensor_of)
    own = cast(Any, diagonal_rule(entry.name, entry.kind))
    laws = [diagonal(*pair) for pair in two_normals(x._mean, x._var, x._joint.third)]
    found = [own(entry, (law, *rest), named)._parts() for law in laws]
    slopes = [gain_of(law, entry, entry.kind, rest, named) for law in laws]
    return with_history(diagonal(*mixture(*found)), alone), mixture((slopes[0], x._var), (slopes[1], x._var))[0]


def _arithmetic(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = Call(entry, args, kwargs)
    first = call.laws[0]
    once = len(call.laws) == 1 and sum(value is first for value in (*args, *kwargs.values())) == 1
    if once and (entry.name == "rdiv" or (entry.name == "div" and args[0] is not first)):
        return _general(entry, args, kwargs)
    alone = by_rule(entry, args, kwargs, alone_of)
    if once:
        tangents, deviations = split(call.along([stacked(first)]), first)
        third = first._joint.third
        if third is not None:
            third = call.along([torch.ones_like(first._mean)[None]])[0] ** 3 * third
        known = squared_length(tangents)
        return exact(alone, (tangents, deviations), known, independent=first._joint.independent, third=third)
    if alone._made is not None and alone._of is not None:
        # One source: its rule is exact, as it is for a function written in one.
        tangents = call.along(call.tangents())
        return exact(alone, (tangents, call.deviations(*alone._parts())), squared_length(tangents))
    return _general(entry, args, kwargs)


def _noise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0]
    if not noise.active(entry, args, kwargs):
        return _elementwise(entry, args, kwargs) if entry.name == "rrelu" else x
    run = RUN.get()
    alone = by_rule(entry, args, kwargs, alone_of) if isinstance(x, Correlated) else _of_certain(entry, args, kwargs)
    mean, var = alone._parts()
    third = _third_of_noise(entry, args, kwargs)
    if not isinstance(x, Correlated):
        return correlated(mean, var, *run.source(mean, var), independent=True, third=third)
    joint = x._joint
    gain = gain_of(joint.alone, entry, "noise", *arguments(args[1:], kwargs, tensor_of))
    tangents, draws = run.source(mean, (var - gain.square() * x._var).clamp_min(0))
    tangents, draws = gain * joint.tangents + tangents, gain * joint.deviations + draws
    return exact(alone, (tangents, draws), squared_length(tangents), independent=joint.independent, third=third)


def _third_of_noise(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Third cumulants that dropout leaves; other noise counts as symmetric."""
    x = args[0]
    if entry.name != "dropout":
        return None
    p = noise.probability(entry, args, kwargs)
    if p >= 1:
        return None
    if not isinstance(x, Correlated):
        mean = tensor_of(x)
        return after_dropout(mean, torch.zeros_like(mean), 0.0, p)
    # What values share does not add up as the noise of each by itself does.
    own = (x._var - x._joint.explained).clamp_min(0)
    return after_dropout(x._mean, own, 0.0 if x._joint.third is None else x._joint.third, p)


def _of_certain(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return diagonal_rule(entry.name, "noise")(entry, args, kwargs)  # type: ignore[misc]


# --------------------------------------------------------------------- others


def _general(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any function that independent values have a rule for."""
    found = by_rule(entry, args, kwargs, marginals)
    if isinstance(found, tuple | list):
        return type(found)([_one_of(entry, args, kwargs, found, place) for place in range(len(found))])
    return _one_of(entry, args, kwargs, found, None)


def _one_of(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any, place: int | None) -> Any:
    """One of a function's results, or its only one, of which ``results`` is what independent values give."""

    def taken(results: Any) -> Any:
        return results if place is None else results[place]

    found = taken(results)
    if not isinstance(found, Law):
        return found
    call = Call(entry, args, kwargs)
    first = call.laws[0]
    mean, whole = found._parts()
    alone = sum(value is first for value in (*args, *kwargs.values())) == len(call.laws) == 1
    if alone and entry.kind in _BY_POINTS and first._mean.numel() <= _FEW and not first._joint.independent:
        return _by_points(call, whole, place)
    if entry.name in _SUMS:  # linear in all laws together: a small deviation beside a large value is kept
        rows = torch.vmap(call)(*[stacked(law) for law in call.laws])
        prior = by_rule(entry, args, kwargs, remainder)._parts()[1]
        return mixed(mean, prior, *split(rows, first), channel_of(entry, mean))
    slope = None
    if len(call.laws) == 1 and args[0] is first:
        slope = slope_of(entry, args, kwargs, first._var, mean, whole)

    def rule(*means: Tensor) -> Tensor:
        given = call.in_place_of([diagonal(m, law._var) for law, m in zip(call.laws, means, strict=True)])
        return cast(Tensor, taken(by_rule(entry, args, kwargs, given))._parts()[0])

    tangents = call.along(call.tangents(), rule if slope is None else slope)
    if alone and first._joint.independent:
        h = squared_length(tangents)  # the rule of independent values is exact
        return correlated(mean, torch.maximum(whole, h), tangents, call.deviations(mean, whole, place), h)
    if entry.name in _BILINEAR and len(call.laws) == 2:
        mean = mean + _shared(call)
    if entry.kind == "normalise":
        before, after = first._var, remainder(first)._var
        usable = before > 0
        prior = torch.where(usable, whole * after / torch.where(usable, before, 1), whole)
    else:
        prior = taken(by_rule(entry, args, kwargs, remainder))._parts()[1]
    return mixed(mean, prior, tangents, call.deviations(mean, whole, place), channel_of(entry, mean))


#: functions of laws alone that are linear in all of them together
_SUMS = frozenset(names("add sub rsub"))


#: kinds of functions that bend so sharply that few samples do not tell the variance, and values up to which they are
#: averaged over points instead
_BY_POINTS = ("softmax", "statistic")
_FEW = 128


def _by_points(call: Call, var: Tensor, place: int | None) -> Correlated:
    """A function of few values, of normal ones of their covariance, averaged over quasi-random points.

    Tangents are averages of the function times the points' coordinates, which are its expected derivatives (Stein).
    The result's variance if values were independent, ``var``, tells the size of its noise.
    """
    (law,) = call.laws
    joint, mean, count = law._joint, law._mean, len(law._joint.tangents)
    # What the directions do not explain varies together as the samples' remainders do, each value by its own variance.
    rest = deflated(joint.deviations, joint.tangents)
    found, wanted = rest.square().sum(0), (law._var - joint.explained).clamp_min(0)
    # Roots before the quotient: its derivative by a variance of 1e-38 would be beyond float32.
    usable = found > 0
    share = square_root(wanted) / torch.where(usable, square_root(found), 1)
    rest = rest * torch.where(usable, share, 0)
    factors = torch.cat([joint.tangents, rest])
    # Twice as many as needed for an identity, also of more samples than by default.
    points = standard_points(len(factors), max(POINTS, 4 * len(factors))).to(mean)
    away = (points @ factors.flatten(1)).view(-1, *mean.shape)
    at = call(mean)
    at = at if place is None else at[place]
    factor = magnification([overall(mean, law._var)], overall(at, var))
    values = torch.vmap(call)(magnified(mean, away, factor))
    values = values if place is None else values[place]
    centre = torch.where(factor > 1, at, values.mean(0))
    deviations = reduced(values, at, centre, factor)
    tangents = (points[:, :count].T @ deviations.flatten(1) / len(points)).view(count, *centre.shape)
    return correlated(centre, deviations.square().mean(0), tangents, call.deviations(centre, var, place))


#: functions that are linear in each of two factors
_BILINEAR = frozenset(names("mul matmul mm bmm mv dot inner outer"))


def _shared(call: Call) -> Tensor:
    """What the covariance of two factors adds to the mean of their product."""
    together = torch.vmap(call)
    rest = [deflated(law._joint.deviations, law._joint.tangents) for law in call.laws]
    return cast(Tensor, together(*call.tangents()).sum(0) + together(*rest).mean(0))


def _creation(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = laws_in((*args, *kwargs.values()))[0]
    values, named = tensors_of(args, kwargs)
    out = entry.call(*values, **named)
    if not out.is_floating_point() or not isinstance(x, Correlated):
        return out
    zero = torch.zeros_like(out)
    rows = [zero.expand(len(own), *out.shape) for own in (x._joint.tangents, x._joint.deviations)]
    return correlated(out, zero, *rows, independent=True)


Correlated.RULES = {
    **{kind: _general for kind in KINDS if kind not in ("decision", "write")},
    **{name: Diagonal.RULES[name] for name in ("query", "refusal")},
    "affine": _affine,
    "batch_norm": _affine,
    "movement": movement_rule,
    "pointwise": _elementwise,
    "arithmetic": _arithmetic,
    "noise": _noise,
    "creation": _creation,
    "maximum": maximum,
    **composite.RULES,
    "scaled_dot_product_attention": composite.attention_by_parts,
}

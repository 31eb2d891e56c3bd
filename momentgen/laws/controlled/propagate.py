"""The method ``controlled``: what a network is found to be by its first calls decides how its rows are run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.errors import UnsupportedError
from momentgen.laws.accuracy import Accuracy, accuracy
from momentgen.laws.border import PROPAGATIONS
from momentgen.laws.controlled.answer import Answer
from momentgen.laws.controlled.cubature import by_cubature
from momentgen.laws.controlled.facts import Facts, close, facts_of
from momentgen.laws.controlled.indexed import each_by_itself
from momentgen.laws.controlled.linear_alone import LinearAlone
from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.outputs import UnlikeEndsError
from momentgen.laws.controlled.parts import joined, parts
from momentgen.laws.controlled.runs import StaleError
from momentgen.laws.controlled.slopes import DifferentiatesError
from momentgen.laws.controlled.stack import UnstackedError
from momentgen.laws.kept import Kept
from momentgen.laws.nests import flattened, leaves_of
from momentgen.laws.notes import note, overheard
from momentgen.laws.values import by_example, check, lower
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.autograd import transformed
from momentgen.runtime.one_thread import one_thread

__all__ = ["propagate"]

#: step between the seeds of a batch's parts, so that each draws its own noise
_NEXT: Final = 15_485_863
#: noise of less than so many roundings of a value is not drawn well
_ROUNDINGS: Final = 16


def propagate(where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Moments of the outputs, with their covariance and its error.

    Args:
        where: the network, for errors, and for what it asks for.
        forward: the network's own code.
        args: tensors, moments, and whatever else.
        kwargs: likewise.

    Raises:
        UnsupportedError: within a transform of ``torch.func``, which has no random numbers and no autograd of its own.
    """
    with one_thread(), overheard() as notes:
        found = _propagated(where, forward, args, kwargs)
    for leaf in leaves_of(found):
        if isinstance(leaf, JointMoments):
            leaf._notes = tuple(notes)
    return found


def _propagated(where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if transformed():
        raise UnsupportedError(
            f"{type(where).__name__}: within a transform of torch.func (vmap, jacrev, ...) the method controlled "
            'cannot run; call the network outside, differentiate by torch.autograd, or use method="ap2"'
        )
    network = Network(where, forward, *flattened((args, kwargs)))
    for value in network.inputs:
        check(where, value)
        _say_if_lost(value)
    spent = accuracy(getattr(where, "accuracy", None))
    with network.own_draws():
        network.seed(spent.seed)
        if not network.inputs:
            before = Kept(where)
            found, draws = network.and_draws([])
            if not draws and _repeats(network, found):
                return lower(found, wide=True)
            before.restore()
        apart = by_example(args, kwargs)
        if apart is None:
            return _answered(network, spent)
        return _answered(Network(where, forward, *flattened(apart)), spent, common=network)


def _repeats(network: Network, found: Any) -> bool:
    """Whether a second call returns the same, so that the network draws from no generator of its own."""
    expected = [leaf.clone() for leaf in leaves_of(found) if isinstance(leaf, Tensor)]
    after = Kept(network.where)
    again = [leaf for leaf in leaves_of(network.call([])) if isinstance(leaf, Tensor)]
    same = len(again) == len(expected) and all(map(close, again, expected))
    after.restore()
    return same


def _say_if_lost(value: Moments) -> None:
    """A note where an input's noise is lost in the rounding of its values, or next to it."""
    mean, var = value.mean.detach(), value.var.detach()
    rounding = _ROUNDINGS * torch.finfo(mean.dtype).eps * mean.abs()
    if bool(((var > 0) & (var < rounding * rounding)).any()):
        note(
            f"controlled: an input's noise is less than {_ROUNDINGS} roundings of its values in {mean.dtype}, "
            "so that draws lose a part of it; use float64"
        )


def _answered(network: Network, spent: Accuracy, whole: bool = True, common: Network | None = None) -> Any:
    """What the network returns; by rows together where they may be, and in parts of a batch that is too large.

    Where examples are not independent, ``common`` answers, in which they have noise in common.
    """
    facts = facts_of(network, spent.seed)
    while True:  # each of these is learnt once
        if common is not None and not (facts.by_example and all(facts.by_example)):
            return _answered(common, spent)
        try:
            divided = parts(network, spent, facts) if whole and common is None else [network]
            if len(divided) > 1:
                seeds = [spent.seed + _NEXT * number for number in range(len(divided))]
                return joined(
                    [_answered(one, spent._replace(seed=seed), False) for one, seed in zip(divided, seeds, strict=True)]
                )
            found = _by_facts(network, spent, facts)
            return found if common is None else each_by_itself(found)
        except DifferentiatesError:
            facts.differentiates = True
        except UnlikeEndsError:
            facts.ends_alike = False
        except StaleError:
            if network.before is not None:
                network.before.restore()
            facts = facts_of(network, spent.seed, anew=True)


def _by_facts(network: Network, spent: Accuracy, facts: Facts) -> Any:
    """The same, of a network of which so much is known."""
    if not spent.max_rows:
        return LinearAlone(network, spent, facts).outputs()
    if (found := by_cubature(network, spent, facts)) is not None:
        return found
    try:
        return Answer(network, spent, facts).outputs()
    except UnstackedError:  # as if it had never been tried, so that the next answer has the same bits
        facts.most = 1
    return Answer(network, spent, facts).outputs()


PROPAGATIONS["controlled"] = propagate

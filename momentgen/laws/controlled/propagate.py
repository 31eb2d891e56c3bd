"""The method ``controlled``: what a network is found to be by its first calls decides how its rows are run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdRef

from momentgen.errors import InputError, UnsupportedError
from momentgen.laws.border import PROPAGATIONS
from momentgen.laws.controlled.answer import Answer, linear_alone
from momentgen.laws.controlled.cubature import by_cubature, roots_of
from momentgen.laws.controlled.expectations import Made
from momentgen.laws.controlled.facts import Facts, close, facts_of
from momentgen.laws.controlled.network import Network
from momentgen.laws.controlled.points import at_points
from momentgen.laws.controlled.predictive import OfOutput, each_by_itself, shares_noise
from momentgen.laws.controlled.state import OtherFactsError
from momentgen.laws.controlled.surrogates import merged
from momentgen.laws.methods import Accuracy, accuracy
from momentgen.laws.nests import Kept, flattened, leaves_of
from momentgen.laws.notes import note, note_and_warn, overheard
from momentgen.laws.values import by_example, check, lower
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.autograd import transformed
from momentgen.runtime.one_thread import one_thread

#: step between the seeds of a batch's parts, so that each draws its own noise
_NEXT: Final = 15_485_863
#: noise of less than so many roundings of a value is not drawn well
_ROUNDINGS: Final = 16
#: how many times what a plain pass computes the first rows hold: outputs, slopes, and the graphs of some rows
_OF_PASS: Final = 8
#: how many times all rows of the outputs an estimate holds
_OF_OUTPUTS: Final = 24
#: bytes of a call where the user asks for none: so many, and so many times those of a plain call at least
_LEAST: Final = 2**28
_PLAIN: Final = 8
#: part of σ that an argument's errors may be without a word
_WELL_KNOWN: Final = 1e-3
#: how many of its widest tensor a plain call holds
_WIDEST: Final = 3


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
        given = leaves_of((args, kwargs))
        origins, (std_share, mean_share) = _origins(given), _shares_of_errors(given)
        if any(isinstance(leaf, JointMoments) and leaf._predictive is not None for leaf in given):
            note(
                "controlled: an argument is the result of another call, and counts as normal. Where it is not, put "
                "both steps into one function, or make the calls within momentgen.joint()"
            )
        if max(std_share, mean_share) > _WELL_KNOWN:
            note(
                f"controlled: an argument is a result, known to {max(std_share, mean_share):.1%} of its σ. "
                "The errors of σ and mean count that; those of quantiles and probabilities do not"
            )
        found = _propagated(where, forward, args, kwargs)
    for leaf in leaves_of(found):
        if isinstance(leaf, JointMoments):
            leaf._notes, leaf._origins = tuple(notes), origins | ({(WeakIdRef(where),)} if leaf._drawn else set())
            if leaf._errors is not None and (std_share or mean_share):
                std, (std_error, mean_error, rows) = leaf.std.detach(), leaf._errors
                leaf._errors = std_error.hypot(std_share * std), mean_error.hypot(mean_share * std), rows
    return found


def _shares_of_errors(leaves: list[Any]) -> tuple[float, float]:
    """Errors of σ and of the mean of arguments that are results, as parts of their σ, root mean squares.

    What they make of the answer's is the same part of it, as of a sum of such values.
    """
    shares = [0.0, 0.0]
    for leaf in {id(leaf): leaf for leaf in leaves if isinstance(leaf, JointMoments)}.values():
        if leaf._errors is None:
            continue
        std = leaf.std.detach()
        for kind, error in enumerate(leaf._errors[:2]):
            known = (std > 0) & error.isfinite()
            if bool(known.any()):
                share = float((error[known] / std[known]).double().square().mean().sqrt())
                shares[kind] = math.hypot(shares[kind], share)
    return shares[0], shares[1]


def _origins(leaves: list[Any]) -> frozenset[Any]:
    """The noise behind the arguments that is still held by someone; a note where two arguments have some in common.

    Noise is known by its mean and variance, a pair of tensors.  A long chain of calls must not keep all of these.
    Parts of one result have its noise in common, though nobody may hold that any more.
    """
    values = {tuple(map(WeakIdRef, tuple.__iter__(leaf))): leaf for leaf in leaves if isinstance(leaf, Moments)}
    met = set(values)
    for leaf in values.values():
        origins = leaf._origins if isinstance(leaf, JointMoments) else frozenset()
        if not met.isdisjoint(origins):
            note_and_warn(
                "noise in common with a result",
                "controlled: an argument is the result of a call whose noise, or whose network's, is also in another "
                "argument; they count as independent. Put both steps into one function, or make the calls within "
                "momentgen.joint()",
            )
        met |= origins
    return frozenset(source for source in met if all(part() is not None for part in source))


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
    if network.inputs and not any(value.mean.numel() for value in network.inputs):
        raise InputError(
            f"{type(where).__name__}: expected noisy values, got none in a tensor of shape "
            f"{tuple(network.inputs[0].mean.shape)}; call the plain network with it"
        )
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
    joined = not (facts.by_example and all(facts.by_example))
    if joined and any(isinstance(one, JointMoments) and shares_noise(one) for one in network.inputs):
        raise InputError(
            f"{type(network.where).__name__}: expected examples that are independent, for the function joins them, "
            "got a result whose examples share noise, as that of random weights. Put both steps into one function, "
            "momentgen.propagate(lambda x: f(net(x)), x). Where they share none, momentgen.noisy(out.mean, var=out.var)"
        )
    while True:  # each of these is learnt once
        if common is not None and not (facts.by_example and all(facts.by_example)):
            return _answered(common, spent)
        try:
            divided = _parts(network, spent, facts) if whole and common is None else [network]
            if len(divided) > 1:
                seeds = [spent.seed + _NEXT * number for number in range(len(divided))]
                return _joined(
                    [_answered(one, spent._replace(seed=seed), False) for one, seed in zip(divided, seeds, strict=True)]
                )
            roots = roots_of(network, facts) if spent.max_rows else None
            if not spent.max_rows:
                found = linear_alone(network, facts)
            elif (found := by_cubature(network, spent, facts, roots)) is None:
                points = at_points(network, roots, spent.seed) if roots else None
                found = Answer(network, spent, facts, points).outputs()
            return found if common is None else each_by_itself(found)
        except OtherFactsError as other:  # anew, so that the next answer has the same bits
            vars(facts).update(other.facts)
            if not other.facts:
                if network.before is not None:
                    network.before.restore()
                facts = facts_of(network, spent.seed, anew=True)


def _parts(network: Network, spent: Accuracy, facts: Facts) -> list[Network]:
    """The network with parts of its batch, such that a call by each stays below ``memory``; one of all where it does.

    An answer that may be differentiated holds its graph, and is not divided.  Neither is noise with a distribution.
    """
    batch = network.batch
    most = spent.memory or max(_LEAST, _PLAIN * _WIDEST * facts.widest)
    held = _OF_PASS * facts.computed + _OF_OUTPUTS * spent.max_rows * facts.returned
    divided = len(facts.by_example) > 0 and all(facts.by_example) and batch > 1 and held > most
    if (
        not divided
        or network.spans_examples
        or network.differentiable
        or any(value.noise is not None for value in network.inputs)
    ):
        return [network]
    size = max(int(most * batch // held), 1)
    return [network.part(range(first, min(first + size, batch))) for first in range(0, batch, size)]


def _joined(found: list[Any]) -> Any:
    """What the network returned for each part of the batch, as if for all of it.

    Rows are those of the part that took most.  What is no tensor is the first part's.
    """
    leaves, forms = zip(*(flattened(one) for one in found), strict=True)
    return forms[0].of([_joined_leaf(list(part)) for part in zip(*leaves, strict=True)])


def _joined_leaf(leaves: list[Any]) -> Any:
    if isinstance(leaves[0], JointMoments):
        rank = max(leaf.factor.shape[-2] for leaf in leaves)
        factor = torch.cat([F.pad(leaf.factor, (0, 0, 0, rank - leaf.factor.shape[-2])) for leaf in leaves])
        # by the tuple itself: reading a variance that the dtype does not hold would warn
        mean, var = (torch.cat(field) for field in zip(*map(tuple.__iter__, leaves), strict=True))
        made = JointMoments.of(mean, var, factor)
        errors = [(leaf.std_error, leaf.mean_error, leaf.rows) for leaf in leaves]
        made = made.with_errors(
            torch.cat([one[0] for one in errors]), torch.cat([one[1] for one in errors]), max(one[2] for one in errors)
        )
        predictives = [
            one for one in (leaf._predictive for leaf in leaves) if isinstance(one, OfOutput) and not one.joined
        ]
        if len(predictives) == len(leaves):
            made._predictive = _joined_predictive(predictives, [len(leaf.mean) for leaf in leaves])
        return made
    if isinstance(leaves[0], Moments):
        return Moments(*(torch.cat(field) for field in zip(*leaves, strict=True)))
    if isinstance(leaves[0], Tensor) and leaves[0].dim() and leaves[0].shape[1:] == leaves[-1].shape[1:]:
        return torch.cat(leaves)
    return leaves[0]


def _joined_predictive(parts: list[OfOutput], sizes: list[int]) -> OfOutput:
    """The predictive distribution of a batch whose parts ran by themselves, of so many examples each."""
    first = parts[0]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]

    def make(wanted: slice) -> Made:
        made = []
        for one, start, size in zip(parts, starts, sizes, strict=True):
            low, high = max(wanted.start - start, 0), min(wanted.stop - start, size)
            if low < high:
                made.append(one._make(slice(low, high)))
        mains, others = [one.main for one in made], zip(*(one.others for one in made), strict=False)
        return Made(merged(mains), [merged(list(one)) for one in others], max(one.factor for one in made))

    def further(count: int) -> int:
        return min(one._further(count) if one._further is not None else 0 for one in parts)

    shape = torch.Size((sum(sizes), *first._size[1:]))
    return OfOutput(shape, first._dtype, True, make, first._end, further)


PROPAGATIONS["controlled"] = propagate

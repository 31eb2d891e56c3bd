"""Few noisy values: rows at the nodes of cubature rules in the place of draws.

With up to three noisy values per example, rules of rising order replace draws.  Of a smooth function they find the
moments far more accurately than as many draws.  One value has trapezoidal rules, whose nodes begin at random places.
More values have products of Gauss-Hermite rules, each turned otherwise.  Two rules in turn differ by about the error of
the first.  That is what is stated, and twice as much where the differences do not shrink.  Where that is more than the
user allows, as of a jump, rows at quasi-random points answer (``sequences.py``).
"""

from __future__ import annotations

import functools
import itertools
import math
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from momentgen.laws.controlled.estimate import Estimate, with_unseen
from momentgen.laws.controlled.facts import Facts
from momentgen.laws.controlled.network import Given, InputNoise, Network
from momentgen.laws.controlled.predictive import Made, OfOutput
from momentgen.laws.controlled.runs import Runs
from momentgen.laws.controlled.sequences import PointNoise, turned
from momentgen.laws.controlled.shares import BY_DRAWS
from momentgen.laws.controlled.state import OtherFactsError
from momentgen.laws.controlled.surrogates import of_nodes
from momentgen.laws.methods import Accuracy
from momentgen.laws.numerics.root import square_root
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.one_thread import one_thread

__all__ = ["at_points", "by_cubature", "roots_of"]

#: orders of the product rules, by the number of noisy values
_ORDERS: Final = {2: (4, 6, 8, 10), 3: (2, 3, 4, 5)}
#: intervals of the trapezoidal rules: no step is a multiple of another, as those of a function that rounds may be
_INTERVALS: Final = (13, 21, 34, 55, 89)
#: how many standard deviations they cover on either side
_REACH: Final = 7.0
#: the probability of what is beyond them, times what Student's t to a power of nearly its degrees of freedom has there
_BEYOND: Final = 10 * math.erfc(_REACH / math.sqrt(2))
#: part of the error asked for at which rules in turn agree: further ones cost little, and each is far nearer
_AGREED: Final = 0.1
#: so many times their difference may be the error of two rules, as they may agree by chance
_BY_CHANCE: Final = 30.0
#: part of the standard deviation that such an error is at least, but where rules differ by less than this part of that
_LEAST: Final = 1e-4
_ROUNDED: Final = 100.0
#: part of the error asked for to which rules must agree in the end
_ALLOWED: Final = 0.5
#: error of functions with kinks, as a multiple of the one asked for, from which further rules do not lead there
_HOPELESS: Final = 2.0
#: differences in turn that shrink by less are chance
_SHRINKS: Final = 0.25
#: those that shrink by more are hardly
_CONVERGES: Final = 0.05
#: share of the examples whose errors count
_EXAMPLES: Final = 0.9
#: outputs whose standard deviation is below this part of the average do not count
_SMALL: Final = 0.01
#: nodes that go through the network together, and of small networks
_TOGETHER, _FREE = 16, 64
#: random points that check the polynomials of several values, before a question of the distribution is answered
_CHECKS: Final = 256
#: roundings of the largest value that a sum over nodes may be off by
_ROUNDINGS: Final = 4.0


_Array = NDArray[np.float64]


class _Rule(NamedTuple):
    """Nodes, shape ``(N, d)``, and their weights, shape ``(N,)``."""

    nodes: _Array
    weight: _Array


def by_cubature(network: Network, spent: Accuracy, facts: Facts, roots: list[Tensor] | None) -> Any:
    """What the network returns, with moments by cubature; None where draws are to answer.

    Raises:
        OtherFactsError: where examples interact that did not in an earlier call.
    """
    if roots is None:
        return None
    nodes = torch.empty(0, roots[0].shape[1], dtype=torch.float64)

    def given(place: int, value: Moments) -> Given:
        def at(rows: Tensor) -> Tensor:
            moved = torch.einsum("nd,bdk->nbk", nodes[rows].to(roots[place]), roots[place])
            moved = moved.reshape(len(rows), *value.mean.shape)
            if value.noise is not None:
                moved = value.noise.of_normal(moved).to(value.mean.dtype)
            return value.mean + moved

        return Given(value, place, at, 0)

    noise = list(itertools.starmap(given, enumerate(network.inputs)))
    runs = Runs(network, facts, list(noise), logits=False, records=False)
    draws = [InputNoise(value, place, spent.seed) for place, value in enumerate(network.inputs)]
    # of one size: for each it is found out by some calls whether rows go together
    size = facts.together(network, draws, _FREE if facts.free else _TOGETHER)
    count, outputs, kinked = nodes.shape[1], runs.outputs, False
    found, weights, error = list[list[Estimate]](), list[Tensor](), math.inf
    parts = list[Estimate]()
    for rule in _rules(count, spent.seed):
        if len(nodes) + len(rule.weight) > spent.max_rows:
            break
        nodes = torch.cat([nodes, torch.from_numpy(rule.nodes)])
        weights.append(torch.from_numpy(rule.weight))
        for one in noise:
            one.count = len(nodes)
        if not len(outputs):
            runs.next(1)  # it gives the form of the outputs
        if not runs.all(len(nodes), size).finite().all():
            return None
        if not found:
            watch = runs.repeats(len(nodes) - 1)
            if watch is None and facts.fresh:
                return None  # it draws, from a generator of its own
            if watch is None:
                raise OtherFactsError
            kinked = watch.kinked
        places = [*outputs.real(), *outputs.real(beside=True)]
        found.append([_estimate(outputs.of(place)[-len(weights[-1]) :], weights[-1]) for place in places])
        if len(found) < 2:
            continue
        parts = _with_errors(found)
        if count == 1 and not all(value.noise is None for value in network.inputs):
            parts = list(map(_with_tails, parts, map(outputs.of, places)))
        error = _error(parts)
        if error <= spent.rtol * _AGREED or (kinked and count > 1 and error > _HOPELESS * spent.rtol):
            break
    # noise that is further off may move an output that is the same at all nodes
    if error > _ALLOWED * spent.rtol or (
        count > 1 and any(bool((values == values[0]).all(0).any()) for values in map(outputs.of, places))
    ):
        return None
    parts = list(map(_rounded, parts))
    if count > 1 and kinked:  # a product of few nodes each does not reach far
        parts = [with_unseen(part, len(nodes)) for part in parts]

    used, curve = len(nodes), count == 1 and not kinked

    def further(more: int) -> int:
        """Run the network at more random points, by which polynomials are checked; how many there are."""
        nonlocal nodes
        if more:
            draw = torch.Generator().manual_seed(spent.seed + len(nodes))
            nodes = torch.cat([nodes, torch.randn(more, count, generator=draw, dtype=torch.float64)])
            for one in noise:
                one.count = len(nodes)
            with one_thread(), network.own_draws(), torch.no_grad():
                runs.all(len(nodes), size)
        return len(nodes) - used

    def predictive(place: int) -> OfOutput:
        """By all rules; a surrogate of lower degree says how far it is off.

        So do random points, of several values and of kinks, next to which the curve through the nodes is not known.
        """
        weight = torch.cat(weights) / len(weights)

        def make(part: slice) -> Made:
            if curve:
                found = [of_nodes(nodes, outputs.of(place)[:, part], weight, less) for less in (0, 1)]
            else:
                if not further(0):
                    further(min(_CHECKS, spent.max_rows))
                values = outputs.of(place)[:, part]
                checks = nodes[used:], values[used:]
                lower = (0, 1) if count == 1 else (0, 1, 2)
                found = [of_nodes(nodes[:used], values[:used], weight, less, checks) for less in lower]
            # the more points correct a polynomial, the less its own error counts
            return Made(found[0], found, 4.0 if curve else 4.0 * _CHECKS / max(further(0), _CHECKS))

        return outputs.predictive(place, make, None if curve else further)

    last = torch.cat([torch.zeros(len(nodes) - len(weights[-1])), weights[-1].float()])
    predictives = {place: predictive(place) for place in outputs.real()}
    return outputs.with_moments(dict(zip(places, parts, strict=True)), predictives, last)


def at_points(network: Network, roots: list[Tensor] | None, seed: int) -> list[InputNoise] | None:
    """Noise at quasi-random points, for rows where rules do not agree; None where draws are to answer."""
    if not roots or not roots[0].shape[1]:
        return None
    values = zip(network.inputs, turned(roots, seed), strict=True)
    return [PointNoise(value, place, seed, root) for place, (value, root) in enumerate(values)]


def roots_of(network: Network, facts: Facts) -> list[Tensor] | None:
    """The noise of each input as a map of the same few standard normal values; None where draws are to answer.

    Each has shape ``(B, d, n)``, with ``B`` examples of ``n`` values, or one of all.  Noise that is not normal is a
    function of such values, in float64: extreme probabilities are beyond float32.
    """
    if facts.draws or not network.inputs or BY_DRAWS.get():
        return None
    apart = bool(facts.by_example) and all(facts.by_example) and not network.spans_examples
    batch, most, roots = network.batch if apart else 0, max(_ORDERS), list[Tensor]()
    for value in network.inputs:
        if value.mean.numel() == 0:
            return None
        examples, std = batch or 1, square_root(value.var)
        if value.noise is not None:
            std = (std != 0).double()
        elif isinstance(value, JointMoments):
            factor = value.factor if batch or value.factor.dim() == 2 else None
            if factor is None:  # a covariance per example, of examples that interact
                factor = torch.block_diag(*value.factor)
            factor = factor.reshape(-1, *factor.shape[-2:]).expand(examples, -1, -1)
            used = (factor != 0).any(-1).any(0)
            if int(used.sum()) > most:
                factor = _reduced(factor, most)
                if factor is None:
                    return None
                used = (factor != 0).any(-1).any(0)
            roots.append(factor[:, used])
            continue
        std = std.reshape(examples, -1)
        places = (std != 0).any(0).nonzero().squeeze(1)
        if len(places) > most:
            return None
        if value.noise is not None:
            on_cpu = value.mean.device.type == "cpu"
            if not on_cpu or value.noise.of_normal(torch.zeros_like(value.mean, dtype=std.dtype)) is None:
                return None
        root = std.new_zeros(examples, len(places), std.shape[1])
        roots.append(root.scatter(2, places.expand(examples, -1)[..., None], std[:, places][..., None]))
    total = sum(root.shape[1] for root in roots)
    if total > most:
        return None
    first = list(itertools.accumulate((root.shape[1] for root in roots), initial=0))
    return [
        F.pad(root, (0, 0, before, total - before - root.shape[1])) for before, root in zip(first, roots, strict=False)
    ]


def _reduced(factor: Tensor, most: int) -> Tensor | None:
    """A factor of the same covariance with at most so many rows; None where its rank is larger."""
    if min(factor.shape[-2:]) > 64 or factor.requires_grad:
        return None
    _, sizes, directions = torch.linalg.svd(factor.to(torch.promote_types(factor.dtype, torch.float32)), False)
    small = sizes <= 8 * torch.finfo(factor.dtype).eps * max(factor.shape[-2:]) * sizes[:, :1]
    if bool((~small[:, most:]).any()):
        return None
    return (sizes[..., None] * directions)[:, :most].to(factor.dtype)


@functools.lru_cache(maxsize=64)
def _rules(count: int, seed: int) -> tuple[_Rule, ...]:
    """Rules for so many values, each nearer than the one before; arrays, for a tensor may be of inference mode."""
    draw, found = np.random.default_rng(seed), list[_Rule]()
    for intervals in _INTERVALS if count == 1 else ():
        places = ((np.arange(intervals) + draw.random()) / intervals * 2 - 1) * _REACH
        found.append(_Rule(places[:, None], _normalised(np.exp(-np.square(places) / 2))))
    for order in _ORDERS.get(count, ()):
        nodes, weights = np.polynomial.hermite_e.hermegauss(order)
        grid = np.stack(np.meshgrid(*[nodes] * count, indexing="ij"), -1).reshape(-1, count)
        weight = functools.reduce(np.multiply.outer, [weights] * count).reshape(-1)
        turn = np.linalg.qr(draw.standard_normal((count, count))).Q
        found.append(_Rule(grid @ turn, _normalised(weight)))
    return tuple(found)


def _normalised(weight: _Array) -> _Array:
    return weight / weight.sum()


def _estimate(outputs: Tensor, weight: Tensor) -> Estimate:
    """Moments over nodes, summed in float64; without errors."""
    weight = weight.to(outputs.device)[:, None, None]
    centre = outputs[0]
    apart = (outputs - centre).double()
    mean = (weight * apart).sum(0)
    factor = (weight.sqrt() * (apart - mean)).movedim(0, 1).to(outputs.dtype)
    nothing = torch.zeros_like(centre)
    return Estimate(centre + mean.to(outputs.dtype), factor, nothing, nothing)


def _with_errors(found: list[list[Estimate]]) -> list[Estimate]:
    """The last estimates, with what standard deviation and mean moved by in the last two steps as errors.

    One of the two may have moved little by chance; it has half of the other's error at least.
    """
    made = []
    with torch.no_grad():
        for place, last in enumerate(found[-1]):
            steps = [(before[place], after[place]) for before, after in itertools.pairwise(found[-3:])]
            std, mean = (
                _of_differences(torch.stack([(of(one) - of(other)).abs() for one, other in steps]), _LEAST * last.std)
                for of in (attrgetter("std"), attrgetter("mean"))
            )
            made.append(last._replace(std_error=std.maximum(mean / 2), mean_error=mean.maximum(std / 2)))
    return made


def _of_differences(differences: Tensor, least: Tensor) -> Tensor:
    """The error that differences of rules in turn tell.

    It is the larger of two, and twice as much where they do not shrink.  The last alone counts by what chance may hide.
    """
    last = differences[-1]
    by_last = (_BY_CHANCE * last).maximum(least.minimum(_ROUNDED * last))
    if len(differences) == 1:
        return by_last
    largest = differences.amax(0)
    by_last = torch.where(last > _CONVERGES * differences[0], by_last, by_last / 3)
    return torch.where(last > _SHRINKS * differences[0], 2 * largest, largest).minimum(by_last)


def _error(parts: list[Estimate]) -> float:
    """By how much the last rules differ, as a part of σ: of all but the worst tenth of the examples."""
    worst = 0.0
    with torch.no_grad():
        for part in parts:
            counted = part.std > _SMALL * part.std.mean()
            share = torch.maximum(part.std_error, part.mean_error) / torch.where(counted, part.std, 1)
            if share.numel():
                worst = max(worst, float(torch.where(counted, share, 0).amax(-1).double().quantile(_EXAMPLES)))
    return worst


def _with_tails(part: Estimate, outputs: Tensor) -> Estimate:
    """With errors of σ that count what noise with heavy tails does beyond the nodes, as the values at the ends tell."""
    with torch.no_grad():
        size = torch.where(part.std > 0, part.std, 1)
        ends = (outputs.amax(0) - part.mean).maximum(part.mean - outputs.amin(0)) / size
        tail = torch.where(part.std > 0, _BEYOND / 2 * ends.square() * part.std, 0)
        return part._replace(std_error=part.std_error.maximum(tail))


def _rounded(part: Estimate) -> Estimate:
    """With errors that count rounding."""
    with torch.no_grad():
        rounding = _ROUNDINGS * torch.finfo(part.mean.dtype).eps * (part.mean.abs() + part.std)
        rounding = torch.where(part.std > 0, rounding, 0)
        return part._replace(std_error=part.std_error.maximum(rounding), mean_error=part.mean_error.maximum(rounding))

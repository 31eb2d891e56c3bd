"""Few noisy values: rows at the nodes of cubature rules, or at quasi-random points, in the place of draws.

With up to three noisy values per example, rules of rising order replace draws.  Of a smooth function they find the
moments far more accurately than as many draws.  One value has trapezoidal rules, whose nodes begin at random places.
More values have products of Gauss-Hermite rules, each turned otherwise.  Two rules in turn differ by about the error of
the first.  That is what is stated, and twice as much where the differences do not shrink.

Where that is more than the user allows, as of a jump, rows take the points of a scrambled Sobol sequence; see
``points``.  So do those of two or three values at kinks, and where a polynomial by the other rules is far from the
last.  Symmetric rules agree on a jump between their nodes.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.controlled.atoms import Rule, atoms_of, of_atoms, with_left_out
from momentgen.laws.controlled.estimate import Estimate, relative_error
from momentgen.laws.controlled.expectations import Made
from momentgen.laws.controlled.facts import Facts
from momentgen.laws.controlled.network import Given, InputNoise, Network, jumps
from momentgen.laws.controlled.predictive import OfOutput
from momentgen.laws.controlled.runs import Runs
from momentgen.laws.controlled.shares import BY_DRAWS
from momentgen.laws.controlled.state import OtherFactsError
from momentgen.laws.controlled.surrogates import is_affine, meets, of_nodes
from momentgen.laws.methods import Accuracy
from momentgen.laws.notes import note_and_warn
from momentgen.laws.numerics.root import square_root
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.one_thread import one_thread

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
#: part of the standard deviation to which a curve or polynomial by the other rules meets the last nodes, by the number
#: of noisy values; where it does not, rules may agree by chance
_NEAR: Final = {1: 0.01, 2: 0.2, 3: 0.2}
#: rules that are not near by that, at least
_MANY: Final = 4
#: part of the error asked for to which rules must agree in the end
_ALLOWED: Final = 0.5
#: differences in turn that shrink by less are chance
_SHRINKS: Final = 0.25
#: those that shrink by more are hardly
_CONVERGES: Final = 0.05
#: nodes that go through the network together, and of small networks
_TOGETHER, _FREE = 16, 64
#: random points that check the polynomials of several values, before a question of the distribution is answered
_CHECKS: Final = 256
#: roundings of the largest value that a sum over nodes may be off by
_ROUNDINGS: Final = 4.0


def by_cubature(network: Network, spent: Accuracy, facts: Facts, roots: list[Tensor] | None) -> Any:
    """What the network returns, with moments by cubature; None where draws are to answer.

    Raises:
        OtherFactsError: where examples interact that did not in an earlier call.
    """
    if roots is None:
        return None
    nodes = torch.empty(0, roots[0].shape[1], dtype=torch.float64)
    moved = [value.mean.new_empty(0, *value.mean.shape) for value in network.inputs]

    def given(place: int, value: Moments) -> Given:
        def at(rows: Tensor) -> Tensor:
            if len(own := moved[place]) < len(nodes):  # many quantiles at once are little dearer than one
                own = moved[place] = torch.cat([own, moved_by(value, roots[place], nodes[len(own) :])])
            return value.mean + own[rows.clamp_max(len(nodes) - 1)]

        return Given(value, place, at)

    runs = Runs(network, facts, list(itertools.starmap(given, enumerate(network.inputs))), logits=False, records=False)
    draws = [InputNoise(value, place, spent.seed) for place, value in enumerate(network.inputs)]
    size = facts.together(network, draws, _FREE if facts.free else _TOGETHER)
    count, outputs, kinked, near = nodes.shape[1], runs.outputs, False, False
    found, weights, error = list[list[Estimate]](), list[Tensor](), math.inf
    parts, places = list[Estimate](), list[int]()
    atoms = atoms_of(network, count, spent.max_rows)
    for rule in _rules(count, spent.seed) if atoms is None else [atoms.rule]:
        if len(nodes) + len(rule.weight) > spent.max_rows:
            break
        nodes = torch.cat([nodes, torch.from_numpy(rule.nodes)])
        weights.append(torch.from_numpy(rule.weight))
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
            kinked = watch.kinked or jumps(network.inputs)
            if kinked and count > 1 and atoms is None:
                return None  # rules are symmetric: two agree on a jump between their nodes
        places = [*outputs.real(), *outputs.real(beside=True)]
        found.append([_estimate(outputs.of(place)[-len(weights[-1]) :], weights[-1]) for place in places])
        if atoms is not None:
            parts = [with_left_out(atoms, *pair) for pair in zip(found[0], map(outputs.of, places), strict=True)]
            error = relative_error(parts, worst=True)
        if len(found) < 2:
            continue
        near = not kinked and all(meets(nodes, outputs.of(place), weights, _NEAR[count]) for place in outputs.real())
        parts = _with_errors(found, near or count > 1)
        if count == 1 and not all(value.noise is None for value in network.inputs):
            parts = list(map(_with_tails, parts, map(outputs.of, places)))
        known = near or (count == 1 and len(found) >= _MANY)
        error = relative_error(parts, worst=True) if known else math.inf
        if error <= spent.rtol * _AGREED:
            break
    # noise that is further off may move an output that is the same at all nodes
    still = atoms is None and count > 1 and any(bool((one == one[0]).all(0).any()) for one in map(outputs.of, places))
    allowed = spent.rtol if near else max(spent.rtol, (4 * spent.max_rows) ** -0.5)
    far = atoms is None and error > _ALLOWED * allowed  # draws know less of counts than all their levels do
    if still or far or outputs.decide():  # nodes count otherwise than draws
        return None
    if error > spent.rtol * _AGREED and all(is_affine(moved, outputs.of(place)) for place in places):
        return None
    if atoms is not None and error > spent.rtol:
        note_and_warn("levels", f"controlled: levels of a count that are left out leave {error:.1%} of σ unknown")
    parts = list(map(_rounded, parts))

    used = len(nodes)
    curve = count == 1 and near

    def further(more: int) -> int:
        """Run the network at more random points, by which polynomials are checked; how many there are."""
        nonlocal nodes
        if more:
            draw = torch.Generator().manual_seed(spent.seed + len(nodes))
            nodes = torch.cat([nodes, torch.randn(more, count, generator=draw, dtype=torch.float64)])
            with one_thread(), network.own_draws(), torch.no_grad():
                runs.all(len(nodes), size)
        return len(nodes) - used

    def predictive(place: int) -> OfOutput:
        """By all rules; a surrogate of lower degree says how far it is off.

        So do random points, of several values and where the curve through the nodes is not known, as next to kinks.
        """
        weight = torch.cat(weights) / len(weights)

        def make(part: slice) -> Made:
            if atoms is not None:
                one = of_atoms(atoms, outputs.of(place)[:, part])
                return Made(one, [one], 0.0)
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

        return outputs.predictive(place, make, None if curve or atoms is not None else further)

    predictives = {place: predictive(place) for place in outputs.real()}
    return outputs.with_moments(dict(zip(places, parts, strict=True)), predictives)


def moved_by(value: Moments, root: Tensor, points: Tensor) -> Tensor:
    """The noise of an input at standard normal points, shape ``(N, *shape)``."""
    found = torch.einsum("nd,bdk->nbk", points.to(root), root).reshape(len(points), *value.mean.shape)
    return found if value.noise is None else value.noise.of_normal(found).to(value.mean.dtype)


def roots_of(network: Network, facts: Facts) -> list[Tensor] | None:
    """The noise of each input as a map of the same few standard normal values; None where draws are to answer.

    Each has shape ``(B, d, n)``, with ``B`` examples of ``n`` values, or one of all.  Noise that is not normal is a
    function of such values, in float64: extreme probabilities are beyond float32.
    """
    if facts.draws or not network.inputs or BY_DRAWS.get():
        return None
    apart = bool(facts.by_example) and all(facts.by_example) and not network.spans_examples
    most, roots = max(_ORDERS), list[Tensor]()
    for value in network.inputs:
        root = _root_of(value, network.batch if apart else 0, most) if value.mean.numel() else None
        if root is None or root.shape[1] > most:
            return None
        roots.append(root)
    total = sum(root.shape[1] for root in roots)
    first = itertools.accumulate((root.shape[1] for root in roots), initial=0)
    padded = (F.pad(root, (0, 0, at, total - at - root.shape[1])) for root, at in zip(roots, first, strict=False))
    return None if total > most else list(padded)


def _root_of(value: Moments, batch: int, most: int) -> Tensor | None:
    """The noise of an input as a map of as many normal values as it takes; None where these are too many to tell.

    Args:
        value: the input.
        batch: of how many independent examples; 0 where all are one.
        most: values that are not too many.
    """
    if value.noise is None and isinstance(value, JointMoments):
        factor = value.factor if batch or value.factor.dim() == 2 else torch.block_diag(*value.factor)
        factor = _used(factor.reshape(-1, *factor.shape[-2:]).expand(batch or 1, -1, -1))
        reduced = factor if factor.shape[1] <= most else _reduced(factor, most)
        return None if reduced is None else _used(reduced)
    std = (square_root(value.var) if value.noise is None else (value.var != 0).double()).reshape(batch or 1, -1)
    places = (std != 0).any(0).nonzero().squeeze(1)
    if len(places) > most:
        return None
    if value.noise is not None:
        on_cpu = value.mean.device.type == "cpu"
        if not on_cpu or value.noise.of_normal(torch.zeros_like(value.mean, dtype=std.dtype)) is None:
            return None
    root = std.new_zeros(len(std), len(places), std.shape[1])
    return root.scatter(2, places.expand(len(std), -1)[..., None], std[:, places][..., None])


def _used(factor: Tensor) -> Tensor:
    """The rows of a factor that are not 0 in all examples."""
    return factor[:, (factor != 0).any(-1).any(0)]


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
def _rules(count: int, seed: int) -> tuple[Rule, ...]:
    """Rules for so many values, each nearer than the one before; arrays, for a tensor may be of inference mode."""
    draw, found = np.random.default_rng(seed), list[Rule]()
    for intervals in _INTERVALS if count == 1 else ():
        places = ((np.arange(intervals) + draw.random()) / intervals * 2 - 1) * _REACH
        found.append(Rule(places[:, None], np.exp(-np.square(places) / 2)))
    for order in _ORDERS.get(count, ()):
        nodes, weights = np.polynomial.hermite_e.hermegauss(order)
        grid = np.stack(np.meshgrid(*[nodes] * count, indexing="ij"), -1).reshape(-1, count)
        weight = functools.reduce(np.multiply.outer, [weights] * count).reshape(-1)
        turn = np.linalg.qr(draw.standard_normal((count, count))).Q
        found.append(Rule(grid @ turn, weight))
    return tuple(Rule(nodes, weight / weight.sum()) for nodes, weight in found)


def _estimate(outputs: Tensor, weight: Tensor) -> Estimate:
    """Moments over nodes, summed in float64; without errors."""
    weight = weight.to(outputs.device)[:, None, None]
    centre = outputs[0]
    apart = (outputs - centre).double()
    mean = (weight * apart).sum(0)
    factor = (weight.sqrt() * (apart - mean)).movedim(0, 1).to(outputs.dtype)
    nothing = torch.zeros_like(centre)
    return Estimate(centre + mean.to(outputs.dtype), factor, nothing, nothing)


def _with_errors(found: list[list[Estimate]], near: bool) -> list[Estimate]:
    """The last estimates, with errors by what standard deviation and mean moved by from rule to rule.

    One of the two may have moved little by chance; it has half of the other's error at least.

    Args:
        found: by each rule.
        near: whether the last rules tell.  Else all do, of one value: rules in turn may agree on a jump by chance, and
            errors fall as the distance of nodes, or faster.
    """
    made = []
    with torch.no_grad():
        for place, last in enumerate(found[-1]):
            every, least = [one[place] for one in found], _LEAST * last.std
            moved = (torch.stack([getattr(one, name) for one in every]).diff(dim=0).abs() for name in ("std", "mean"))
            std, mean = (_of_differences(one[-2:], least) if near else _of_all(one) for one in moved)
            made.append(last._replace(std_error=std.maximum(mean / 2), mean_error=mean.maximum(std / 2)))
    return made


def _of_all(differences: Tensor) -> Tensor:
    """The largest that one of all differences of trapezoidal rules tells of the last rule."""
    sizes = torch.tensor(_INTERVALS[1 : len(differences) + 1]).to(differences)
    return (differences * (sizes / sizes[-1])[:, None, None]).amax(0)


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

"""Random parameters in the first and the second pass of the methods that run a network twice.

In the first, on ``Adjoint`` laws, every source is a shift of a mean;
in the second, on ``Correlated`` laws, it has tangents and deviations.  The two passes meet sources in one order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.adjoint import Adjoint, shifted_law
from momentgen.laws.affine import VARIANCE
from momentgen.laws.coefficients import noise_of_weight
from momentgen.laws.correlated import RUN, Correlated, Run, correlated, deflated, mixed, squared_length
from momentgen.laws.covariance_graph import Narrower, memory_allowed
from momentgen.laws.diagonal import Diagonal, pair
from momentgen.laws.examples import batch_of, per_example
from momentgen.laws.law import Law, tensor_of
from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.numerics.root import square_root
from momentgen.laws.parameters import LIFT, Lift, Lifted, Pairs, Plan, is_one_row, lifted, shared_by_neighbours, spread
from momentgen.laws.probes import Probes, factor_of, probes_of
from momentgen.laws.sources import SOURCES, Sources
from momentgen.laws.table import Entry

__all__ = ["planned_per_example"]

#: copies of a source of weights that are alive for one example: derivatives, directions, tangents, samples, products
_COPIES = 112


def planned_per_example(
    where: object,
    forward: Callable[..., Any],
    one: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chunk: int | None = None,
    rows: Callable[[int], int] | None = None,
) -> Any:
    """:func:`~momentgen.laws.examples.per_example`, of passes in which random parameters are sources.

    As many examples are computed at a time, at most ``chunk`` or what ``rows`` allows, as their sources fit into the
    memory that :class:`momentgen.laws.covariance.options` allows.
    """
    width = batch_of(args, kwargs)
    width = width if chunk is None else min(width, chunk)
    while True:
        token = LIFT.set(_lift(width))
        try:
            return per_example(where, forward, one, args, kwargs, chunk, rows)
        except Narrower as fewer:
            width = chunk = fewer.batch
        finally:
            LIFT.reset(token)


def _lift(batch: int) -> Lift:
    """What makes random parameters of both passes, of so many examples at a time."""
    plan = Plan()

    def lift(mean: Tensor, var: Tensor, neighbour: Tensor | None) -> Law | Tensor:
        run, sources = RUN.get(None), SOURCES.get(None)
        if run is not None:
            return lifted(mean, var, neighbour, _Second(run), plan, plan.next(run))
        if sources is not None:
            return lifted(mean, var, neighbour, _First(sources, batch), plan, plan.next(sources))
        return mean  # the network is run on certain values, to see whether examples interact

    return lift


def _outputs(weight: Lifted, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Pairs | None]:
    """*Variance* of the noise that a weight adds to the outputs of one vector; and what neighbouring outputs share."""
    noise = noise_of_weight(F.linear, "linear", mean, var, weight._var, weight.neighbour, {})
    count, inputs = weight._var.shape
    if weight.neighbour is None or count < 2:
        return noise, None
    ends = shared_by_neighbours(weight._var, weight.neighbour)
    # The pairs of the last element of one output with the first of the next.
    first = ends.first[inputs - 1 :: inputs] * mean[..., -1:]
    second = ends.second[inputs - 1 :: inputs] * mean[..., :1]
    own = noise - F.pad(first.square(), (0, 1)) - F.pad(second.square(), (1, 0))
    return noise, Pairs(at_least(own, 0), first, second)


class _First:
    """On ``Adjoint`` laws."""

    keeps_pairs = False

    def __init__(self, sources: Sources, batch: int) -> None:
        self.sources, self.batch = sources, batch

    def materialised(self, parameter: Lifted) -> Law:
        self._check_room(parameter)
        mean, var = parameter._mean, parameter._var
        if parameter.neighbour is None:
            return shifted_law(self.sources.shifted(mean, var), var)
        pairs = shared_by_neighbours(var, parameter.neighbour)
        law = shifted_law(self._of_pairs(mean.reshape(-1), pairs).view(mean.shape), var)
        if self.sources.has_probes:
            law._probes = Probes(self._probes_of_pairs(pairs).view(-1, *mean.shape))
        return law

    def _of_pairs(self, mean: Tensor, pairs: Pairs) -> Tensor:
        shifted = self.sources.shifted(mean, pairs.own)
        of_pairs = torch.ones_like(pairs.first)
        return shifted + spread(pairs, self.sources.shifted(torch.zeros_like(of_pairs), of_pairs))

    def _probes_of_pairs(self, pairs: Pairs) -> Tensor:
        of_pairs = torch.ones_like(pairs.first)
        return self.sources.moved(pairs.own) + spread(pairs, self.sources.moved(of_pairs))

    def _check_room(self, parameter: Lifted) -> None:
        need = _COPIES * parameter._var.numel() * parameter.dtype.itemsize * (1 if parameter.neighbour is None else 2)
        allowed = memory_allowed()
        if need > allowed:
            raise InputError(
                f"a random parameter of shape {tuple(parameter.shape)} that meets many values takes about "
                f"{need / 2**30:.3g} GiB for each example, more than the {allowed / 2**30:.3g} GiB allowed; use ap2, "
                "or allow more by momentgen.laws.covariance.options(memory=...)"
            )
        if need * self.batch > allowed:
            raise Narrower(max(1, allowed // need))

    def linear_map(
        self, entry: Entry, x: Any, weight: Lifted, options: dict[str, Any], alone: bool, reused: bool
    ) -> Any:
        (mean, var), own = pair(x), weight._var
        total = noise_of_weight(entry.call, entry.name, mean, var, own, weight.neighbour, options)
        if var is not None:
            total = total + VARIANCE[entry.name](entry.call, var, weight._mean, None, **options)
        rows: list[Tensor] = []  # probes, by where they come from
        if alone and is_one_row(entry, x):
            noise, pairs = _outputs(weight, mean.detach(), var)
            out = F.linear(mean, weight._mean)
            out = self.sources.shifted(out, noise) if pairs is None else self._of_pairs(out, pairs)
            if self.sources.has_probes:
                rows.append(self.sources.moved(noise) if pairs is None else self._probes_of_pairs(pairs))
        else:
            out = entry.call(mean, weight.law()._mean, None, **options)
            if self.sources.has_probes:
                at = self.sources.constant(mean)
                own_rows = probes_of(weight.law()).rows
                rows.append(torch.vmap(lambda row: entry.call(at, row, None, **options))(own_rows))
            if var is not None:
                of_products = var
                out, left = self.sources.remainder(out, lambda: entry.call(of_products, own, None, **options))
                rows += [self.sources.moved(left)] if left is not None and rows else []
        law = shifted_law(out, total)
        if rows:
            self._give_probes(law, entry, x, weight, options, rows)
        return law

    def _give_probes(
        self, law: Adjoint, entry: Entry, x: Any, weight: Lifted, options: dict[str, Any], rows: list[Tensor]
    ) -> None:
        """Let a linear map have probes: those of its weight's noise, ``rows``, and those of its input."""
        found = functools.reduce(torch.add, [part.view(-1, *law._mean.shape) for part in rows])
        if isinstance(x, Diagonal):
            known = probes_of(x)
            found = found + torch.vmap(lambda row: entry.call(row, weight._mean, None, **options))(known.rows)
            if not known.independent:
                law._var = law._var * factor_of(entry, law._var, found)
        law._probes = Probes(found)

    def plus(self, y: Any, bias: Lifted, shape: list[int]) -> Any:
        mean, var = pair(y)
        own = bias._var.view(shape)
        law = shifted_law(mean + bias.law()._mean.view(shape), own.expand(mean.shape) if var is None else var + own)
        if self.sources.has_probes:
            moved = probes_of(bias.law()).rows
            aligned = [*[1] * (law._mean.dim() - len(shape)), *shape]
            moved = moved.view(len(moved), *aligned).expand(-1, *law._mean.shape)
            law._probes = Probes(moved + probes_of(y).rows if isinstance(y, Diagonal) else moved)
        return law


class _Second:
    """On ``Correlated`` laws."""

    keeps_pairs = False

    def __init__(self, run: Run) -> None:
        self.run = run

    def materialised(self, parameter: Lifted) -> Law:
        mean, var = parameter._mean, parameter._var
        if parameter.neighbour is None:
            return correlated(mean, var, *self.run.source(mean, var), independent=True)
        pairs = shared_by_neighbours(var, parameter.neighbour)
        rows = self._of_pairs(mean.reshape(-1), pairs)
        return correlated(mean, var, *[row.view(-1, *mean.shape) for row in rows])

    def _of_pairs(self, mean: Tensor, pairs: Pairs, of_samples: Pairs | None = None) -> tuple[Tensor, Tensor]:
        """Tangents and deviations; noise of samples may be of another size."""
        of_samples = pairs if of_samples is None else of_samples
        (own, own_draws), (both, both_draws) = (
            self.run.source(value, torch.ones_like(value)) for value in (mean, mean[..., 1:])
        )
        return (
            own * square_root(pairs.own) + spread(pairs, both),
            own_draws * square_root(of_samples.own) + spread(of_samples, both_draws),
        )

    def linear_map(
        self, entry: Entry, x: Any, weight: Lifted, options: dict[str, Any], alone: bool, reused: bool
    ) -> Any:
        linear = entry.call(x, weight._mean, None, **options)
        random = isinstance(x, Correlated)
        mean, var = (x._mean, x._var) if random else (tensor_of(x), None)
        samples = mean + x._joint.deviations if random else mean.unsqueeze(0)
        if alone and is_one_row(entry, x):
            noise, pairs = _outputs(weight, mean, var)
            of_samples, pairs_of_samples = _outputs(weight, samples, None)
            if pairs is None:
                unit, draws = self.run.source(noise, torch.ones_like(noise))
                rows = (unit * square_root(noise), draws * square_root(of_samples))
            else:
                rows = self._of_pairs(noise, pairs, pairs_of_samples)
            return _sum(linear, rows, noise, independent=not random and pairs is None)
        own: Any = weight.law()
        joint = own._joint

        def call(x: Tensor, w: Tensor) -> Any:
            return entry.call(x, w, None, **options)

        tangents = torch.vmap(call, in_dims=(None, 0))(mean, joint.tangents)
        deviations = torch.vmap(call, in_dims=(0 if random else None, 0))(samples if random else mean, joint.deviations)
        if not (reused and random):
            noise = noise_of_weight(entry.call, entry.name, mean, var, own._var, weight.neighbour, options)
            return _sum(linear, (tangents, deviations), noise, independent=False)
        # What goes in may depend on the same weight: variances by the samples, as of any product.
        of_rest = at_least(own._var - joint.explained, 0)
        left = weight.neighbour
        if left is not None:
            flat = joint.tangents.flatten(1)
            left = left - F.pad((flat[:, :-1] * flat[:, 1:]).sum(0), (0, 1)).view(left.shape)
        prior = noise_of_weight(entry.call, entry.name, mean, var, of_rest, left, options)
        prior = prior + VARIANCE[entry.name](
            entry.call, at_least(x._var - x._joint.explained, 0), weight._mean, None, **options
        )
        together = torch.vmap(call)
        shared = together(x._joint.tangents, joint.tangents).sum(0)
        shared = shared + together(*[deflated(part.deviations, part.tangents) for part in (x._joint, joint)]).mean(0)
        tangents, deviations = linear._joint.tangents + tangents, linear._joint.deviations + deviations - shared
        return mixed(linear._mean + shared, prior, tangents, deviations, -1 if entry.name == "linear" else 1)

    def plus(self, y: Any, bias: Lifted, shape: list[int]) -> Any:
        law: Any = bias.law()
        mean, form = bias._mean.view(shape), tensor_of(y).shape

        def stretched(rows: Tensor) -> Tensor:
            return rows.view(-1, *[1] * (len(form) - mean.dim()), *mean.shape).expand(-1, *form)

        one_each = form.numel() == mean.numel() and bias.neighbour is None
        alike = one_each and (not isinstance(y, Correlated) or y._joint.independent)
        moved = _moved(y, mean) if isinstance(y, Correlated) else y + mean
        rows = (stretched(law._joint.tangents), stretched(law._joint.deviations))
        return _sum(moved, rows, bias._var.view(shape).expand(form), independent=alike)


def _moved(y: Correlated, by: Tensor) -> Any:
    joint = y._joint
    return correlated(
        y._mean + by, y._var, joint.tangents, joint.deviations, joint.explained, independent=joint.independent
    )


def _sum(y: Any, rows: tuple[Tensor, Tensor], var: Tensor, independent: bool) -> Any:
    """``y`` and noise that is uncorrelated with it, of that *variance*; at least what the directions explain."""
    mean, (tangents, deviations) = tensor_of(y), rows
    if isinstance(y, Correlated):
        tangents, deviations = y._joint.tangents + tangents, y._joint.deviations + deviations
        var = y._var + var
    h = squared_length(tangents)
    return correlated(mean, torch.maximum(var.expand(mean.shape), h), tangents, deviations, h, independent=independent)

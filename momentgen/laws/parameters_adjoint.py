"""Random parameters in the method ``adjoint``: each is a source, of its own values or of the outputs that it meets."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.adjoint import Adjoint, shifted_law
from momentgen.laws.affine import VARIANCE
from momentgen.laws.coefficients import noise_of_weight
from momentgen.laws.covariance_graph import Narrower, memory_allowed
from momentgen.laws.diagonal import Diagonal, pair
from momentgen.laws.law import Law
from momentgen.laws.numerics.bounds import at_least
from momentgen.laws.parameters import Lift, Lifted, Pairs, Plan, is_one_row, lifted, shared_by_neighbours, spread
from momentgen.laws.probes import Probes, factor_of, probes_of
from momentgen.laws.sources import SOURCES, Sources
from momentgen.laws.table import Entry

__all__ = ["lift"]

#: copies of a source of weights that are alive for one example: derivatives of the outputs, probes, products
_COPIES = 112


def lift(batch: int) -> Lift:
    """What makes random parameters sources, of so many examples at a time."""
    plan = Plan()

    def made(mean: Tensor, var: Tensor, neighbour: Tensor | None) -> Law | Tensor:
        sources = SOURCES.get(None)
        if sources is not None:
            return lifted(mean, var, neighbour, _Keeper(sources, batch), plan, plan.next(sources))
        return mean.clone()  # the network is run on certain values, to see whether examples interact

    return made


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


class _Keeper:
    """Computes with random parameters in one run."""

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
        law._joint = Probes(self._probes_of_pairs(pairs).view(-1, *mean.shape))
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
                f"{need / 2**30:.3g} GiB for each example, more than the {allowed / 2**30:.3g} GiB allowed. Use ap2, "
                "or allow more by momentgen.laws.covariance.options(memory=...)"
            )
        if need * self.batch > allowed:
            raise Narrower(max(1, allowed // need))

    def linear_map(self, entry: Entry, x: Any, weight: Lifted, options: dict[str, Any]) -> Any:
        (mean, var), own = pair(x), weight._var
        total = noise_of_weight(entry.call, entry.name, mean, var, own, weight.neighbour, options)
        if var is not None:
            total = total + VARIANCE[entry.name](entry.call, var, weight._mean, None, **options)
        if weight._joint.alone and is_one_row(entry, x):
            noise, pairs = _outputs(weight, self.sources.constant(mean), var)
            out = F.linear(mean, weight._mean)
            out = self.sources.shifted(out, noise) if pairs is None else self._of_pairs(out, pairs)
            rows = self.sources.moved(noise) if pairs is None else self._probes_of_pairs(pairs)
        else:
            out = entry.call(mean, weight.law()._mean, None, **options)
            at, own_rows = self.sources.constant(mean), probes_of(weight.law()).rows
            rows = torch.vmap(lambda row: entry.call(at, row, None, **options))(own_rows)
            if var is not None:
                left = entry.call(var, own, None, **options)
                out, rows = self.sources.shifted(out, left), rows + self.sources.moved(left)
        law = shifted_law(out, total)
        self._give_probes(law, entry, x, weight, options, rows)
        return law

    def _give_probes(
        self, law: Adjoint, entry: Entry, x: Any, weight: Lifted, options: dict[str, Any], rows: Tensor
    ) -> None:
        """Let a linear map have probes: those of its weight's noise, ``rows``, and those of its input."""
        found = rows.view(-1, *law._mean.shape)
        if isinstance(x, Diagonal):
            known = probes_of(x)
            found = found + torch.vmap(lambda row: entry.call(row, weight._mean, None, **options))(known.rows)
            if not known.independent:
                law._var = law._var * factor_of(entry, law._var, found)
        law._joint = Probes(found)

    def plus(self, y: Any, bias: Lifted, shape: list[int]) -> Any:
        mean, var = pair(y)
        own = bias._var.view(shape)
        law = shifted_law(mean + bias.law()._mean.view(shape), own.expand(mean.shape) if var is None else var + own)
        moved = probes_of(bias.law()).rows
        aligned = [*[1] * (law._mean.dim() - len(shape)), *shape]
        moved = moved.view(len(moved), *aligned).expand(-1, *law._mean.shape)
        law._joint = Probes(moved + probes_of(y).rows if isinstance(y, Diagonal) else moved)
        return law

"""Surrogates of a network's outputs by the rows of one call: as cheap to draw from as a linear map.

A surrogate is a smooth function of standard normal values, plus a remainder that is independent of it.  Of draws the
smooth part is the linear part, whose law is known, with a bend: the remainder's regression on its Hermite polynomials.
At cubature nodes it interpolates one noisy value, and is a polynomial of several.  The remainder is what the smooth
part leaves of a row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.controlled.estimate import Rows, fitted

#: groups of pairs of rows that are left out in turn
_GROUPS: Final = 8
#: total degree of the polynomials, by the number of noisy values
_DEGREES: Final = {2: 8, 3: 5}
#: rows at least that show a bound, and parts of σ by which they are near it at most, and smooth parts apart at least
_SATURATED, _ALIKE, _APART = 4, 0.001, 0.1
#: terms of a polynomial, at most, per node
_TERMS: Final = 0.9


class Surrogate(NamedTuple):
    """A distribution that is near that of the outputs.

    Attributes:
        dimensions: how many standard normal values the smooth part is a function of.
        smooth: takes these, shape ``(N, d)``, and numbers in [0, 1), shape ``(N,)``; returns ``(N, B, K)``.
        at_rows: the smooth part of each row, shape ``(n, B, K)``; None of nodes on a line, which are no draws.
        rest: the remainder of each row that counts, shape ``(m, B, K)``.
        rows: the outputs of the rows, shape ``(n, B, K)``.
        share: the remainder's part of the *variance*, shape ``(B, K)``.
        order: of each row of a larger set its remainder here, -1 for none; None where these are all rows.  Versions
            without some rows then have the same remainders at most points.
        form: bounds, infinite where there are none, and 1 for whole numbers, shape ``(3, B, K)``; None for any values.
    """

    dimensions: int
    smooth: Callable[[Tensor, Tensor], Tensor]
    at_rows: Tensor | None
    rest: Tensor
    rows: Tensor
    share: Tensor
    order: Tensor | None = None
    form: Tensor | None = None

    def draws(self, points: Tensor, uniform: Tensor) -> Tensor:
        """Outputs at normal points, shape ``(N, d)``; numbers in [0, 1), shape ``(N, 2)``, choose the remainders."""
        place = uniform[:, 0] * len(self.rest if self.order is None else self.order)
        chosen = place.long()
        if self.order is not None:
            own = self.order[chosen]
            chosen = torch.where(own < 0, ((place - chosen) * len(self.rest)).long(), own)
        return self.formed(self.smooth(points, uniform[:, 1]) + self.rest[chosen])

    def formed(self, values: Tensor) -> Tensor:
        """Values within the bounds, and whole where all rows are."""
        if self.form is None:
            return values
        least, largest, whole = self.form
        return torch.where(whole > 0, values.round(), values).clamp(least, largest)


def of_rows(rows: Rows, drawn: Tensor | None, shrunk: bool = True) -> Surrogate:
    """The surrogate of draws.

    Args:
        rows: outputs, their linear parts, and the root of the covariance of those parts that are normal.
        drawn: draws of the others, shape ``(M, B, K)``.
        shrunk: whether the bend is smaller where chance explains it.  A jackknife needs it as it was found.
    """
    outputs, linear, root = (part.detach().double() for part in rows[:3])
    rows = Rows(outputs, linear, root, rows.fresh)
    found = fitted(rows, None if drawn is None else drawn.double())
    var = found.root.square().sum(-2) + (0 if found.drawn is None else found.drawn.var(0))
    std = var.sqrt()
    kept, linear = rows.outputs[rows.fresh :], found.linear[rows.fresh :]
    t = _standardised(linear, std)
    rest = kept - found.mean - linear
    rest = rest - rest.mean(0)
    terms = torch.stack(_hermite(t))
    terms = terms - terms.mean(1, keepdim=True)
    bend = (terms * rest).mean(1) / terms.square().mean(1).clamp_min(0.5)
    if shrunk:  # as far as chance does not explain it (the garotte); pairs have the second term in common
        chance = rest.square().mean(0) / len(kept)
        bend = bend * torch.where(bend.square() > chance, 1 - chance / bend.square().clamp_min(1e-300), 0)
    bend = torch.where(var > 0, bend, 0)
    rest = rest - _bent(t, bend)
    left = (found.rest - bend.square().sum(0)).clamp_min(0)
    own = rest.square().mean(0)
    rest = rest * torch.where(own > 0, left / own.clamp_min(1e-300), 1).clamp(0.25, 4).sqrt()

    total = var + found.rest
    share = torch.where(total > 0, rest.square().mean(0) / total.clamp_min(1e-300), 0)
    # without a linear part draws are the rows themselves: counts stay whole
    alone = (var == 0) & found.mean.isfinite()
    centre, rest = torch.where(alone, 0, found.mean), torch.where(alone, kept, rest)

    def smooth(points: Tensor, uniform: Tensor) -> Tensor:
        at = torch.einsum("nd,bdk->nbk", points, found.root)
        if found.drawn is not None:
            at = at + found.drawn[(uniform * len(found.drawn)).long()]
        return centre + at + _bent(_standardised(at, std), bend)

    at_rows = centre + linear + _bent(t, bend)
    return Surrogate(found.root.shape[1], smooth, at_rows, rest, kept, share, form=_form(kept, at_rows))


def without_groups(rows: Rows, drawn: Tensor | None) -> list[Surrogate]:
    """The surrogates of draws without one group of pairs each, for a jackknife."""
    first = rows.fresh // 2
    pairs = len(rows.outputs) // 2
    place = torch.arange(pairs) - first
    groups = min(_GROUPS, pairs - first)
    found = []
    for group in range(groups if groups > 2 else 0):
        kept = ((place < 0) | (place % groups != group)).repeat_interleave(2)
        made = of_rows(Rows(rows.outputs[kept], rows.linear[kept], rows.root, rows.fresh), drawn, shrunk=False)
        counted = kept[rows.fresh :]
        found.append(made._replace(order=torch.where(counted, counted.cumsum(0) - 1, -1)))
    return found


def of_nodes(
    nodes: Tensor, outputs: Tensor, weight: Tensor, less: int = 0, checks: tuple[Tensor, Tensor] | None = None
) -> Surrogate:
    """The surrogate of nodes of cubature.

    Args:
        nodes: standard normal values, shape ``(N, d)``, float64.
        outputs: at each, shape ``(N, B, K)``.
        weight: how much each counts in a fit, shape ``(N,)``.
        less: by how much the degree is below the largest.
        checks: random points and the outputs there, which tell what a polynomial leaves of them.
    """
    outputs = outputs.detach().double()
    if nodes.shape[1] == 1:
        order = nodes[:, 0].argsort()
        smooth = _interpolation(nodes[order, 0], outputs[order], less == 0)
    else:
        few, most = _TERMS * len(nodes), _DEGREES[nodes.shape[1]]
        degree = max(k for k in range(1, most + 1) if math.comb(k + nodes.shape[1], k) <= few)
        degree = max(degree - less, 1)
        size = weight.sqrt()[:, None]
        solved = torch.linalg.lstsq(size * _basis(nodes, degree), size * outputs.flatten(1)).solution

        def smooth(points: Tensor, uniform: Tensor) -> Tensor:
            del uniform
            return (_basis(points, degree) @ solved).unflatten(1, outputs.shape[1:])

    total = (weight[:, None, None] * (outputs - (weight[:, None, None] * outputs).sum(0)).square()).sum(0)
    if checks is None:
        at_rows, rows, rest = None, outputs, outputs[:1] * 0
    else:
        points, rows = checks[0], checks[1].detach().double()
        at_rows = smooth(points, points[:, 0])
        rest = rows - at_rows
    share = torch.where(total > 0, rest.square().mean(0) / total.clamp_min(1e-300), 0)
    return Surrogate(nodes.shape[1], smooth, at_rows, rest, rows, share, form=_form(rows, at_rows))


def meets(nodes: Tensor, outputs: Tensor, weights: list[Tensor], within: float) -> bool:
    """Whether the curve or polynomial by the other rules meets the nodes of the last one, up to rounding.

    Args:
        nodes: standard normal values of all rules, shape ``(N, d)``, float64.
        outputs: at each, shape ``(N, B, K)``.
        weights: of each rule, with the sum 1.
        within: to which part of the standard deviation.
    """
    first, values = len(nodes) - len(weights[-1]), outputs.detach().double()
    found = of_nodes(nodes[:first], values[:first], torch.cat(weights[:-1]))
    last, share = values[first:], weights[-1][:, None, None].to(values)
    var = (share * (last - (share * last).sum(0)).square()).sum(0)
    off = (share * (last - found.smooth(nodes[first:], nodes[first:, 0])).square()).sum(0)
    rounding = 100 * torch.finfo(outputs.dtype).eps * values.abs().amax(0)
    return bool((off <= within**2 * var + rounding.square()).all())


def is_affine(noise: list[Tensor], outputs: Tensor) -> bool:
    """Whether outputs are an affine function of the noise, up to rounding.

    Args:
        noise: of each input in each row, shape ``(N, *shape)``, with the examples in front where these are independent.
        outputs: shape ``(N, B, K)``.
    """
    values = outputs.detach().double().cpu().movedim(1, 0)
    own = [one.detach().double().cpu().reshape(len(one), len(values), -1).movedim(1, 0) for one in noise]
    given = torch.cat([torch.ones_like(own[0][..., :1]), *own], -1)
    left = values - given @ torch.linalg.lstsq(given, values).solution
    eps = torch.finfo(outputs.dtype).eps
    return bool((left.abs().amax(1) <= 100 * eps * values.abs().amax(1)).all())


def merged(parts: list[Surrogate]) -> Surrogate:
    """The surrogate of the examples of several; of their rows as many as all of them have."""
    if len(parts) == 1:
        return parts[0]

    def smooth(points: Tensor, uniform: Tensor) -> Tensor:
        return torch.cat([part.smooth(points[:, : part.dimensions], uniform) for part in parts], 1)

    def together(values: list[Tensor]) -> Tensor:
        return torch.cat([value[: min(map(len, values))] for value in values], 1)

    at_rows = [part.at_rows for part in parts if part.at_rows is not None]
    rows, every = together([part.rows for part in parts]), together(at_rows) if len(at_rows) == len(parts) else None
    rest, share = together([part.rest for part in parts]), torch.cat([part.share for part in parts])
    return Surrogate(max(part.dimensions for part in parts), smooth, every, rest, rows, share, form=_form(rows, every))


def _form(rows: Tensor, smooth: Tensor | None) -> Tensor | None:
    """Bounds on which some rows agree, and their smooth parts do not; and whether all rows are whole."""
    if smooth is None:
        return None
    std, found = rows.std(0), [(rows == rows.round()).all(0).to(rows)]
    for sign in (-1.0, 1.0):
        end = (sign * rows).amax(0)
        near = sign * rows >= end - _ALIKE * std
        apart = torch.where(near, smooth, -torch.inf).amax(0) - torch.where(near, smooth, torch.inf).amin(0)
        saturates = (near.sum(0) >= _SATURATED) & (apart > _APART * std)
        found.insert(-1, sign * torch.where(saturates, end, torch.inf))
    return torch.stack(found) if bool((found[0].isfinite() | found[1].isfinite() | (found[2] > 0)).any()) else None


def _interpolation(place: Tensor, value: Tensor, cubic: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Through values at ordered places: linear, or cubic with the slopes of parabolas."""
    step = place.diff()[:, None, None]
    secant = value.diff(dim=0) / step
    inner = (secant[:-1] * step[1:] + secant[1:] * step[:-1]) / (step[1:] + step[:-1])
    slope = torch.cat([secant[:1], inner, secant[-1:]])

    def smooth(points: Tensor, uniform: Tensor) -> Tensor:
        del uniform
        after = torch.searchsorted(place, points[:, 0].contiguous()).clamp(1, len(place) - 1)
        before, size = after - 1, step[after - 1]
        part = (points[:, 0] - place[before])[:, None, None] / size
        line = value[before] + part * (value[after] - value[before])
        if not cubic:
            return line
        left, right = slope[before] - secant[before], slope[after] - secant[before]
        return line + size * part * (1 - part) * (left * (1 - part) - right * part)

    return smooth


def _basis(points: Tensor, degree: int) -> Tensor:
    """Products of normalised Hermite polynomials up to a total degree, shape ``(N, P)``."""
    single = [torch.ones_like(points), points]
    for k in range(1, degree):
        single.append((points * single[k] - math.sqrt(k) * single[k - 1]) / math.sqrt(k + 1))
    dimensions = range(points.shape[1])
    powers = (p for p in itertools.product(range(degree + 1), repeat=points.shape[1]) if sum(p) <= degree)
    return torch.stack([torch.stack([single[p[i]][:, i] for i in dimensions]).prod(0) for p in powers], 1)


def _standardised(linear: Tensor, std: Tensor) -> Tensor:
    return torch.where(std > 0, linear / torch.where(std > 0, std, 1), 0)


def _hermite(t: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised Hermite polynomials of second and third degree."""
    return (t.square() - 1) / math.sqrt(2), (t.pow(3) - 3 * t) / math.sqrt(6)


def _bent(t: Tensor, bend: Tensor) -> Tensor:
    second, third = _hermite(t)
    return bend[0] * second + bend[1] * third

"""Moments of the outputs, and their errors, from rows and the linear part.

Rows come in pairs.  Of each, o is half the difference of the outputs and g half their sum, and the linear part l = A e
is divided likewise.  With γ the coefficient of o on l, outputs have the covariance γ A Σ Aᵀ γ + R.  The first term is
exact.  R is the covariance of the remainder: the second moment of o - γ l plus the sample covariance of g - γ l.
For antithetic pairs o is odd in the noise and g even; for independent ones the same sums are those of independent
draws.

One coefficient for all outputs of an example is known well.  The own one of an output replaces it by as much as they
differ by more than chance (the garotte: Breiman 1995).

The remainders of an example's outputs are alike more often than not, as shares of their linear part.  Each is shrunk
towards their average, by as much as chance explains how far they are apart.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.numerics.root import scale_of
from momentgen.runtime import norms

__all__ = ["Estimate", "Rows", "away", "estimated", "left_out", "with_reach", "with_unseen"]


#: a linear part that moves by more than so many times what the output does is of slopes that overflow in some row
_WILD: Final = 1e3
#: by how much errors are widened where few pairs make most of a standard deviation: such pairs may as well be missing
_TAILS: Final = 10.0
#: square of the skewness of a pair's sum of two squares of normal values
_NORMAL: Final = 4.0
#: how much larger the error of what outputs have in common is than its square says, which few groups and outputs tell
_TOGETHER: Final = 2.25
#: outputs that tell as much of how unlike they are as each by itself
_FEW: Final = 2.0
#: groups of pairs that the jackknife of all outputs leaves out, at most
_GROUPS: Final = 16
#: standard errors by which an output's own version may differ from the one beside the others' by chance
_BEYOND: Final = 3.0


class Rows(NamedTuple):
    """What is known of the outputs.

    Attributes:
        outputs: shape ``(rows, batch, K)``; rows 2 p and 2 p + 1 are a pair.
        linear: A e of each row, of the same shape.
        root: shape ``(batch, d, K)``, ``rootᵀ root`` is the exact covariance of the linear part.
        fresh: from which row on the remainder counts: A was made of the outputs of those before.
    """

    outputs: Tensor
    linear: Tensor
    root: Tensor
    fresh: int = 0


class Estimate(NamedTuple):
    """Moments of the outputs of each example.

    Attributes:
        mean: shape ``(batch, K)``.
        factor: shape ``(batch, r, K)``, of the covariance.
        std_error: standard errors of the standard deviations, of the shape of the mean.
        mean_error: those of the means.
    """

    mean: Tensor
    factor: Tensor
    std_error: Tensor
    mean_error: Tensor

    @property
    def var(self) -> Tensor:
        """*Variances*, of the shape of the mean."""
        return self.factor.square().sum(-2)

    @property
    def std(self) -> Tensor:
        """Standard deviations, of the shape of the mean, also where their squares are beyond range."""
        return norms(self.factor)


class _Halves(NamedTuple):
    """Pairs of rows: odd and even halves of the outputs and of the linear part, shape ``(pairs, batch, K)``."""

    odd: Tensor
    even: Tensor
    odd_linear: Tensor
    even_linear: Tensor

    def at(self, pairs: Tensor | slice) -> _Halves:
        """These pairs."""
        return _Halves(*(part[pairs] for part in self))


def _halves(rows: Rows) -> _Halves:
    plus, minus, plus_linear, minus_linear = (part[first::2] for part in rows[:2] for first in (0, 1))
    return _Halves(
        (plus - minus) / 2, (plus + minus) / 2, (plus_linear - minus_linear) / 2, (plus_linear + minus_linear) / 2
    )


class _Coefficients(NamedTuple):
    """γ, shape ``(batch, K)``, and by how much each is the output's own, from 0 to 1."""

    gamma: Tensor
    own: Tensor


def _coefficients(sums: _Halves, exact: Tensor) -> _Coefficients:
    """The outputs' regression on the linear part."""
    even = sums.even - sums.even.mean(0)
    even_linear = sums.even_linear - sums.even_linear.mean(0)
    square = (sums.odd_linear.square() + even_linear.square()).sum(0)
    cross = (sums.odd * sums.odd_linear + even * even_linear).sum(0)
    together = _together(exact + (sums.odd.square() + even.square()).mean(0), cross, square)
    usable = (square > 0) & square.isfinite() & cross.isfinite()
    size = torch.where(usable, square, 1)
    single = torch.where(usable, cross / size, together)
    rest = (sums.odd - single * sums.odd_linear).square() + (even - single * even_linear).square()
    rounding = torch.finfo(exact.dtype).eps * (1 + single.abs() + together.abs())  # they are about 1
    chance = rest.sum(0) / size / max(len(sums.odd) - 1, 1) + rounding.square()
    apart = (single - together).square()
    beyond = usable & (apart > chance)
    own = torch.where(beyond, 1 - chance / torch.where(beyond, apart, 1), 0)
    own = torch.maximum(own, _unlike(apart, chance, usable))
    return _Coefficients(together + own * (single - together), own)


def _unlike(apart: Tensor, chance: Tensor, usable: Tensor) -> Tensor:
    """By how much the outputs of an example are known to have unlike coefficients, from 0 to 1 for each.

    The variance of the true ones is what the squares ``apart`` exceed ``chance`` by (DerSimonian & Laird 1986).
    """
    counted = usable & (chance > 0)
    weight = torch.where(counted, 1 / torch.where(counted, chance, 1), 0)
    total, count = weight.sum(-1, keepdim=True), counted.sum(-1, keepdim=True)
    heterogeneity = (weight * apart).sum(-1, keepdim=True) - (count - 1)
    scale = total - weight.square().sum(-1, keepdim=True) / torch.where(total > 0, total, 1)
    some = (heterogeneity > 0) & (scale > 0) & (count > 1)
    spread = torch.where(some, heterogeneity / torch.where(some, scale, 1), 0)
    return torch.where(counted & some, spread / (spread + chance), 0)


def _together(size: Tensor, cross: Tensor, square: Tensor) -> Tensor:
    """One coefficient for each example, shape ``(batch, 1)``, to which each output counts in its own scale.

    Args:
        size: squares of the scales.
        cross: sums of products of the outputs and the linear part, of the same shape.
        square: sums of squares of the linear part.
    """
    usable = size.isfinite() & (size > 0)
    weight = torch.where(usable, 1 / torch.where(usable, size, 1), 0)
    over = torch.where(usable, cross * weight, 0).sum(-1, keepdim=True)
    under = torch.where(usable, square * weight, 0).sum(-1, keepdim=True)
    return torch.where(under > 0, over / torch.where(under > 0, under, 1), 0)


def _residuals(sums: _Halves, found: _Coefficients) -> tuple[Tensor, Tensor]:
    """Means, shape ``(batch, K)``, and rows whose second moment is R, shape ``(2 pairs, batch, K)``."""
    pairs, outputs = len(sums.odd), sums.odd.shape[-1]
    odd = sums.odd - found.gamma * sums.odd_linear
    even = sums.even - found.gamma * sums.even_linear
    mean, fitted = even.mean(0), found.own + (1 - found.own) / max(outputs, 1)
    fitted = torch.where(sums.odd_linear.any(0), fitted, 0)
    freedom = (pairs - fitted).clamp_min(0.5)
    return mean, torch.cat([odd / freedom.sqrt(), (even - mean) / max(pairs - 1, 1) ** 0.5])


def _shrunk(own: Tensor, exact: Tensor, pairs: int) -> Tensor:
    """The remainder's variances drawn together, shape ``(batch, K)``."""
    usable = (exact > 1e-4 * own) & (exact > 0) & own.isfinite() & exact.isfinite()
    count = usable.sum(-1, keepdim=True)
    share = torch.where(usable, own / torch.where(usable, exact, 1), 0)
    mean = share.sum(-1, keepdim=True) / count.clamp_min(1)
    apart = torch.where(usable, share - mean, 0).square().sum(-1, keepdim=True) / (count - 1).clamp_min(1)
    chance = 2 / (2 * pairs - 1) * mean.square()
    # As James and Stein: chance over what is seen; few outputs do not tell what chance is.
    weight = torch.where(apart > chance, chance / torch.where(apart > chance, apart, 1), 1) * (count / (count + 10))
    weight = torch.where((mean > 0) & (count > 1), weight, 0)
    drawn = own + weight * (mean * exact - own)
    # Shares may be orders apart: none moves by more than chance may have moved it (Efron & Morris 1972).
    limit = math.exp(2 * (2 / (2 * pairs - 1)) ** 0.5)
    return torch.where(usable, torch.clamp(drawn, own / limit, own * limit), own)


def estimated(rows: Rows) -> Estimate:
    """Moments of the outputs and their errors; see the module's head."""
    size, centre, rows = _scaled(rows)
    exact, pairs = rows.root.square().sum(-2), _halves(rows)
    counted = pairs.at(slice(rows.fresh // 2, None))
    mean, factor, gamma, var, residuals = _moments(pairs, counted, rows.root, exact)
    with torch.no_grad():
        std = (var + exact * gamma.square()).sqrt()
        std_error = _std_error(counted, rows.root, exact, std)
        apart = residuals[len(counted.odd) :]
        square = apart.square().sum(0) / len(pairs.odd) * _tails(apart)
        mean_error = _shared(square, std.square(), _few(len(counted.odd))).sqrt()
    return Estimate(mean * size + centre, factor * size[:, None], std_error * size, mean_error * size)


def _std_error(counted: _Halves, root: Tensor, exact: Tensor, std: Tensor) -> Tensor:
    """Standard errors of the standard deviations.

    Each output by itself has a jackknife.  What an example's outputs have in common makes the estimate better than
    that.  Its own jackknife says by how much, but not where the outputs are unlike: how far they are from what each
    says by itself, beyond chance, is the same error of all.
    """
    square, own_std = _jackknife(counted, exact)
    own = _shared(square, own_std.square(), _few(len(counted.odd)))
    together = _jackknife_together(counted, root, exact)
    if together is None:
        return own.sqrt()
    usable = (std > 0) & std.isfinite() & own.isfinite() & together.isfinite()
    count = usable.sum(-1, keepdim=True).clamp_min(1)
    size = torch.where(usable, std, 1)

    def share(value: Tensor) -> Tensor:
        return torch.where(usable, value / size.square(), 0).sum(-1, keepdim=True) / count

    apart = (share((std - own_std).square()) - share((square - together).clamp_min(0))).clamp_min(0)
    pooled = _TOGETHER * (_shared(together, std.square(), _few(len(counted.odd))) + apart * std.square())
    # Of few outputs there is little to tell how unlike they are.
    pooled = (count * pooled + _FEW * own) / (count + _FEW)
    # An output that is unlike the others by itself has that as its error.
    own_apart = ((std - own_std).square() - _BEYOND**2 * own).clamp_min(0)
    return (torch.where(usable & (count > 1), pooled.minimum(own), own) + own_apart).sqrt()


def _jackknife_together(counted: _Halves, root: Tensor, exact: Tensor) -> Tensor | None:
    """*Variances* of the standard deviations of :func:`_moments` by leaving out groups of pairs; None for one output.

    All groups go together, as so many batches.
    """
    pairs, (batch, outputs) = len(counted.odd), exact.shape
    groups = next((count for count in range(min(pairs, _GROUPS), 5, -1) if pairs % count == 0), 0)
    if outputs < 2 or not groups:
        return None
    place = torch.arange(pairs, device=exact.device)
    kept = torch.stack([place[place % groups != group] for group in range(groups)], 1)
    sums = _Halves(*(part[kept].flatten(1, 2) for part in counted))
    exact = exact.repeat(groups, 1)
    coefficients = _coefficients(sums, exact)
    own = _residuals(sums, coefficients)[1].square().sum(0)
    var = _shrunk(own, exact, len(sums.odd)) + exact * coefficients.gamma.square()
    stds = var.sqrt().unflatten(0, (groups, batch))
    return (groups - 1) * (stds - stds.mean(0)).square().mean(0)


def left_out(rows: Rows, groups: int) -> list[Estimate]:
    """Moments of the outputs, each time without one of so many groups of pairs; their errors are 0.

    Pairs that A was made from are never left out.
    """
    size, centre, rows = _scaled(rows)
    exact, pairs, first = rows.root.square().sum(-2), _halves(rows), rows.fresh // 2
    place, found = torch.arange(len(pairs.odd), device=size.device) - first, []
    for group in range(groups):
        kept = pairs.at((place < 0) | (place % groups != group))
        mean, factor = _moments(kept, kept.at(slice(first, None)), rows.root, exact)[:2]
        nothing = torch.zeros_like(mean)
        found.append(Estimate(mean * size + centre, factor * size[:, None], nothing, nothing))
    return found


def _moments(
    pairs: _Halves, counted: _Halves, root: Tensor, exact: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mean and factor; γ, the remainder's *variance*, and the rows whose second moment it is.

    Args:
        pairs: of the mean.
        counted: those of the remainder.
        root: as of :class:`Rows`.
        exact: *variance* of the linear part.
    """
    coefficients = _coefficients(counted, exact)
    gamma, (mean, residuals) = coefficients.gamma, _residuals(counted, coefficients)
    if len(counted.odd) < len(pairs.odd):
        mean = (pairs.even - gamma * pairs.even_linear).mean(0)
    own = residuals.square().sum(0)
    var = _shrunk(own, exact, len(counted.odd))
    some = own > 0
    scale = torch.where(some, var / torch.where(some, own, 1), 1).sqrt()
    factor = torch.cat([gamma[:, None] * root, (residuals * scale).movedim(0, 1)], 1)
    return mean, factor, gamma, var, residuals


def with_unseen(found: Estimate, rows: int) -> Estimate:
    """Errors that count what none of so many rows has met.

    Pairs of rows do not see what happens in fewer than one of them, as that another value of a max pool is the largest.
    Such an event changes the standard deviation by up to its probability.  A network of few values may have one such
    event and no other.  Of many values some rows meet some events.  Of smooth functions there are none.
    """
    with torch.no_grad():
        unseen = found.std / rows  # events of a probability of .7 / pairs are missed as often as not
        return found._replace(std_error=found.std_error.maximum(unseen), mean_error=found.mean_error.maximum(unseen))


def with_reach(found: Estimate, reach: Tensor, rows: int) -> Estimate:
    """Errors of outputs that are the same in so many rows, but may move.

    An event that none of ``rows`` draws has met has, at a confidence of 95 %, a probability of at most 3 / rows.  Two
    errors reach as far as such an event does.

    Args:
        found: of all outputs.
        reach: how far an output goes then, shape ``(batch, K)``; 0 for those that moved or never do, NaN if unknown.
        rows: how many there are.
    """
    with torch.no_grad():
        still = (found.std == 0) & (reach != 0)
        std_error = torch.where(still, reach * (3 / rows) ** 0.5 / 2, found.std_error)
        return found._replace(
            std_error=std_error, mean_error=torch.where(still, reach * (3 / rows) / 2, found.mean_error)
        )


def _scaled(rows: Rows) -> tuple[Tensor, Tensor, Rows]:
    """The rows about their centre in units of their size, in which no square is beyond range; size and centre first."""
    with torch.no_grad():
        centre = rows.outputs[0]
        spread = away(rows.outputs, centre).abs().amax(0)
        extent = torch.maximum(rows.linear.abs().amax(0), rows.root.abs().amax(-2))
        sound = extent <= _WILD * spread  # also false where it is not finite
        largest = torch.where(sound, torch.maximum(spread, extent), spread)
        size = scale_of(largest.nan_to_num(0, 0, 0))
    linear, root = torch.where(sound, rows.linear / size, 0), torch.where(sound[:, None], rows.root / size[:, None], 0)
    return size, centre, Rows(away(rows.outputs, centre) / size, linear, root, rows.fresh)


def away(values: Tensor, centre: Tensor) -> Tensor:
    """How far values are from their centre; 0 for infinite ones that equal it, as the logits of masked classes do."""
    return torch.where(centre.isinf() & (values == centre), 0, values - centre)


def _jackknife(sums: _Halves, exact: Tensor) -> tuple[Tensor, Tensor]:
    """*Variances* of standard deviations, leaving one pair out at a time; and these, by each output alone.

    They are those of each output's own version, with a coefficient and a remainder of its own.
    """
    pairs, outputs = len(sums.odd), sums.odd.shape[-1]
    if pairs < 3:
        return torch.full_like(exact, torch.inf), exact.sqrt()
    even, even_linear = sums.even - sums.even.mean(0), sums.even_linear - sums.even_linear.mean(0)

    def without(odd: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over all pairs but each one; of the even halves about the mean of those that are left."""
        return odd.sum(0) - odd, other.sum(0) - other * (pairs / (pairs - 1))

    def over(top: Tensor, bottom: Tensor) -> Tensor:
        return torch.where(bottom > 0, top / torch.where(bottom > 0, bottom, 1), 0)

    # Of residuals about the coefficient of all pairs nothing cancels.
    cross = (sums.odd * sums.odd_linear + even * even_linear).sum(0)
    gamma = over(cross, (sums.odd_linear.square() + even_linear.square()).sum(0))
    odd, even = sums.odd - gamma * sums.odd_linear, even - gamma * even_linear
    own = without(odd.square(), even.square())
    mixed = without(odd * sums.odd_linear, even * even_linear)
    linear = without(sums.odd_linear.square(), even_linear.square())
    change = over(mixed[0] + mixed[1], linear[0] + linear[1])
    rest_odd, rest_even = (a - 2 * change * b + change.square() * c for a, b, c in zip(own, mixed, linear, strict=True))
    fitted = sums.odd_linear.any(0) / max(outputs, 1)
    rest = rest_odd / (pairs - 1 - fitted) + rest_even / (pairs - 2)
    stds = ((gamma + change).square() * exact + rest.clamp_min(0)).sqrt()
    influence = stds.mean(0) - stds  # of each pair on the standard deviation
    square = (pairs - 1) * influence.square().mean(0) * _tails(influence)
    return square, stds.mean(0)


def _tails(influence: Tensor) -> Tensor:
    """By how much a square of an error is widened, of what each pair does to the estimate, which is 0 on average.

    It grows with the square of their skewness, as far as that is more than normal rows have.
    """
    square = influence.square().sum(0)
    cube = torch.where(square > 0, influence / torch.where(square > 0, square, 1).sqrt(), 0).pow(3).sum(0)
    return 1 + _TAILS * (cube.square() - _NORMAL / (len(influence) + _NORMAL)).clamp_min(0)


def _few(pairs: int) -> float:
    """The *variance* of Student's t with as many degrees of freedom as so few pairs have."""
    return (pairs - 1) / max(pairs - 3, 1)


def _shared(square: Tensor, var: Tensor, few: float) -> Tensor:
    """Squares of errors from few pairs, which do not know them well: one that met no rare event states 0.

    Half of each is the average of the example's outputs, as shares of their *variances*, and the other half its own,
    widened by ``few`` to that of Student's t.
    """
    usable = (var > 0) & var.isfinite() & square.isfinite()
    count = usable.sum(-1, keepdim=True)
    share = torch.where(usable, square / torch.where(usable, var, 1), 0).sum(-1, keepdim=True) / count.clamp_min(1)
    return torch.where(usable & (count > 1), (few * square + share * var) / 2, few * square)

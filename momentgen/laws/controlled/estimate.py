"""Moments of the outputs, and their errors, from rows and the linear part.

Rows come in pairs.  Of each, o is half the difference of the outputs and g half their sum, and the linear part l = A e
is divided likewise.  With γ the coefficient of o on l, outputs have the covariance γ A Σ Aᵀ γ + R.  The first term is
exact.  R is the covariance of the remainder: the second moment of o - γ l plus the sample covariance of g - γ l.
For antithetic pairs o is odd in the noise and g even; for independent ones the same sums are those of independent
draws.

The remainders of an example's outputs are alike more often than not, as shares of their linear part.  Each is shrunk
towards their average, by as much as chance explains how far they are apart.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from momentgen.laws.controlled.linear import Halves, Products, coefficients, freedom, over, remainder
from momentgen.laws.numerics.root import coordinates, scale_of, with_common
from momentgen.runtime import norms

#: a linear part that moves by more than so many times what the output does is of slopes that overflow in some row
_WILD: Final = 1e3
#: by how much errors are widened where few pairs make most of a standard deviation: such pairs may as well be missing
_TAILS: Final = 10.0
#: kurtosis, less 1, of remainders that few pairs know least; pairs from which on the jackknife tells more of them
_SQUARES, _KNOWN = 12.0, 32
#: rows that tell which outputs err together
_ENOUGH: Final = 64
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
#: share of the examples whose errors count, and the part of the average below which no standard deviation does
_EXAMPLES, _SMALL = 0.9, 0.01


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


def _halves(rows: Rows) -> Halves:
    return Halves(*(torch.stack([part[0::2] - part[1::2], part[0::2] + part[1::2]]) / 2 for part in rows[:2]))


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
    pairs = _halves(rows)
    found = _moments(pairs, rows.fresh // 2, rows.root)
    with torch.no_grad():
        count = found.products.count
        std = found.factor.square().sum(-2).sqrt()
        beyond, wider = _unlucky(count, apart_from_others(found.residuals))
        std_error = _std_error(found.products, found.exact, std).maximum(
            ((std.square() + beyond * found.var).sqrt() - std) / 2
        )
        apart = found.residuals[count:]
        square = apart.square().sum(0) / pairs.outputs.shape[1] * tails(apart)
        mean_error = _shared(square, std.square(), wider.clamp_min(_few(count))).sqrt()
    return Estimate(found.mean * size + centre, found.factor * size[:, None], std_error * size, mean_error * size)


def joined(rows: Rows, factor: Tensor) -> Tensor:
    """A factor of :func:`estimated`, with the same *variances*, whose covariances are right.

    A is the derivative's average.  Where outputs jump, or few rows were averaged, it is not the best linear map.  Then
    an output's remainder varies with the linear parts of others.
    """
    own, rest = factor.split([rows.root.shape[1], factor.shape[1] - rows.root.shape[1]], 1)
    if factor.shape[-1] < 2 or rest.shape[1] < 4:
        return factor
    size, _, rows = _scaled(rows)
    odd, even = _halves(rows).linear[:, rows.fresh // 2 :]
    linear = torch.cat([odd / len(odd) ** 0.5, (even - even.mean(0)) / (len(even) - 1) ** 0.5])
    own, rest = with_common(rows.root, own / size[:, None], linear, (rest / size[:, None]).movedim(1, 0))
    return torch.cat([own, rest.movedim(0, 1)], 1) * size[:, None]


class Fitted(NamedTuple):
    """What the rows say of the outputs' distribution; see :func:`fitted`."""

    mean: Tensor
    linear: Tensor
    root: Tensor
    drawn: Tensor | None
    rest: Tensor
    gamma: Tensor


def fitted(rows: Rows, drawn: Tensor | None = None) -> Fitted:
    """The mean; the linear part of each row, its root and draws of it, all times γ; the remainder's *variance*.

    Args:
        rows: with the root of that part of A e that is normal.
        drawn: draws of what is not.
    """
    with torch.no_grad():
        extra = None if drawn is None else drawn.std(0)
        root = rows.root if extra is None else torch.cat([rows.root, extra[:, None]], 1)
        size, centre, scaled = _scaled(rows._replace(root=root))
        found = _moments(_halves(scaled), rows.fresh // 2, scaled.root)
        own = found.gamma * size
        used = scaled.root if extra is None else scaled.root[:, :-1]
        if drawn is not None:
            drawn = torch.where(scaled.root.abs().amax(-2) > 0, drawn * found.gamma, 0)
        mean, rest = found.mean * size + centre, found.var * size.square()
        gamma = torch.where(found.exact > 0, found.gamma, 0)
        if drawn is not None:
            return Fitted(mean, scaled.linear * own, used * own[:, None], drawn, rest, gamma)
        root, rest = joined(rows, found.factor * size[:, None]).split([root.shape[1], 2 * found.products.count], 1)
        linear = torch.einsum("nbk,bkd,bdj->nbj", scaled.linear, coordinates(scaled.root), root)
        return Fitted(mean, linear, root, None, rest.square().sum(1), gamma)


def _std_error(products: Products, exact: Tensor, std: Tensor) -> Tensor:
    """Standard errors of the standard deviations.

    Each output by itself has a jackknife.  What an example's outputs have in common makes the estimate better than
    that.  Its own jackknife says by how much, but not where the outputs are unlike: how far they are from what each
    says by itself, beyond chance, is the same error of all.
    """
    square, own_std = _jackknife(products, exact, True)
    own = _shared(square, own_std.square(), _few(products.count))
    if exact.shape[-1] < 2:
        return own.sqrt()
    together, _ = _jackknife(products, exact, False)
    usable = (std > 0) & std.isfinite() & own.isfinite() & together.isfinite()
    count = usable.sum(-1, keepdim=True).clamp_min(1)
    size = torch.where(usable, std, 1)

    def share(value: Tensor) -> Tensor:
        return torch.where(usable, value / size.square(), 0).sum(-1, keepdim=True) / count

    apart = (share((std - own_std).square()) - share((square - together).clamp_min(0))).clamp_min(0)
    pooled = _TOGETHER * (_shared(together, std.square(), _few(products.count)) + apart * std.square())
    # Of few outputs there is little to tell how unlike they are.
    pooled = (count * pooled + _FEW * own) / (count + _FEW)
    # An output that is unlike the others by itself has that as its error.
    own_apart = ((std - own_std).square() - _BEYOND**2 * own).clamp_min(0)
    return (torch.where(usable & (count > 1), pooled.minimum(own), own) + own_apart).sqrt()


def _jackknife(products: Products, exact: Tensor, outputs_alone: bool) -> tuple[Tensor, Tensor]:
    """*Variances* of standard deviations by leaving out pairs, and these on average; of each output alone, or as found.

    Alone it has a coefficient and a remainder of its own, and each pair is left out.  Else groups are, which cost less.
    """
    count = products.count
    if count < 3:
        return torch.full_like(exact, torch.inf), exact.sqrt()
    groups = count if outputs_alone else min(count, _GROUPS)
    sums = products.left_out(groups)
    if outputs_alone:
        gamma = sums.base + over(sums.cross.sum(0), sums.linear.sum(0))
        rest = remainder(sums, gamma, 0.0)
    else:
        found = coefficients(sums, exact)
        gamma, rest = found.gamma, _shrunk(remainder(sums, *found), exact, count)
    stds = (gamma.square() * exact + rest).sqrt()
    influence = stds.mean(0) - stds  # of each pair or group on the standard deviation
    square = (groups - 1) * influence.square().mean(0)
    return square * tails(influence) if outputs_alone else square, stds.mean(0)


def left_out(rows: Rows, groups: int) -> list[Estimate]:
    """Moments of the outputs, each time without one of so many groups of pairs; their errors are 0.

    Pairs that A was made from are never left out.
    """
    size, centre, rows = _scaled(rows)
    pairs, first, estimates = _halves(rows), rows.fresh // 2, list[Estimate]()
    place = torch.arange(pairs.outputs.shape[1], device=size.device) - first
    for group in range(groups):
        found = _moments(pairs.at((place < 0) | (place % groups != group)), first, rows.root)
        nothing = torch.zeros_like(found.mean)
        estimates.append(Estimate(found.mean * size + centre, found.factor * size[:, None], nothing, nothing))
    return estimates


class _Moments(NamedTuple):
    """Mean and factor; γ; the remainder's *variance*; what it is of; sums, and the *variance* of the linear part."""

    mean: Tensor
    factor: Tensor
    gamma: Tensor
    var: Tensor
    residuals: Tensor
    products: Products
    exact: Tensor


def _moments(pairs: Halves, first: int, root: Tensor) -> _Moments:
    """Moments of the outputs, to whose remainder pairs count from ``first`` on."""
    counted, exact = pairs.at(slice(first, None)), root.square().sum(-2)
    products = Products(counted)
    sums = products.total()
    gamma, own = coefficients(sums, exact)
    odd, even = counted.outputs - gamma * counted.linear
    apart = (even - even.mean(0)) / (sums.pairs - 1).clamp_min(1).sqrt()
    residuals = torch.cat([odd / freedom(sums, own).sqrt(), apart])
    mean = (pairs.outputs[1] - gamma * pairs.linear[1]).mean(0)
    own = residuals.square().sum(0)
    var, some = _shrunk(own, exact, products.count), own > 0
    scale = torch.where(some, var / torch.where(some, own, 1), 1).sqrt()
    factor = torch.cat([gamma[:, None] * root, (residuals * scale).movedim(0, 1)], 1)
    return _Moments(mean, factor, gamma, var, residuals, products, exact)


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


def relative_error(parts: list[Estimate], worst: bool = False) -> float:
    """The error of standard deviations, as a part of these: of all but the worst tenth of the examples.

    Of an example it is the root mean square over the outputs of one kind of result.  With ``worst`` it is the largest
    of these, and of the errors of means.
    """
    found = 0.0
    with torch.no_grad():
        for part in parts:
            std = part.std
            error = part.std_error.maximum(part.mean_error) if worst else part.std_error
            counted = (std > _SMALL * std.nanmean()) & (error.isfinite() | worst)
            share, count = torch.where(counted, error / torch.where(counted, std, 1), 0).square(), counted.sum(-1)
            errors = (share.amax(-1) if worst else share.sum(-1) / count)[count > 0].sqrt() if std.numel() else share
            if len(errors):
                found = max(found, float(errors.double().quantile(_EXAMPLES)))
    return found


def away(values: Tensor, centre: Tensor) -> Tensor:
    """How far values are from their centre; 0 for infinite ones that equal it, as the logits of masked classes do."""
    return torch.where(centre.isinf() & (values == centre), 0, values - centre)


def tails(influence: Tensor) -> Tensor:
    """By how much a square of an error is widened, of what each pair does to the estimate, which is 0 on average.

    It grows with the square of their skewness, as far as that is more than normal rows have.
    """
    square = influence.square().sum(0)
    cube = torch.where(square > 0, influence / torch.where(square > 0, square, 1).sqrt(), 0).pow(3).sum(0)
    return 1 + _TAILS * (cube.square() - _NORMAL / (len(influence) + _NORMAL)).clamp_min(0)


def apart_from_others(residuals: Tensor) -> Tensor:
    """How many outputs of an example err by themselves, shape ``(batch, 1)``: K²/|C|², with C the correlations.

    Sums of the same values, as partial sums, err together.  What chance adds to |C|² is left out.

    Args:
        residuals: of each row, shape ``(rows, batch, K)``, 0 on average.
    """
    residuals = residuals[:: max(len(residuals) // _ENOUGH, 1)]
    size = norms(residuals.movedim(0, 1))
    unit = torch.where(size > 0, residuals / torch.where(size > 0, size, 1), 0).movedim(0, 1)
    count = (size > 0).sum(-1, keepdim=True).clamp_min(1).to(size.dtype)
    square = (unit @ unit.mT).square().sum((1, 2))[:, None] - (count.square() - count) / len(residuals)
    return count.square() / square.maximum(count)


def _unlucky(pairs: int, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """By how much more a remainder's *variance* may be than few pairs say, and by what squares of errors are widened.

    Squares of normal values, and what is near them, are usually smaller than on average.  So pairs that met no large
    one say too little of the remainder, and of its error too.  As many degrees of freedom as such pairs have bound it
    at a confidence of 97.5 % (Wilson & Hilferty 1931).  Of more pairs the jackknife knows it, and outputs tell of each
    other, as many of an example as :func:`apart_from_others` says.
    """
    freedom, normal = 2 * pairs * outputs / _SQUARES, 1.96
    lowest = (1 - 2 / (9 * freedom) - normal * (2 / (9 * freedom)).sqrt()).clamp_min(0.2).pow(3)
    student = 1 + (normal**2 + 1) / (4 * freedom) + (5 * normal**4 + 16 * normal**2 + 3) / (96 * freedom.square())
    return (1 / lowest - 1) * min(1, _KNOWN / pairs) / outputs, student.square()


def _few(pairs: int) -> float:
    """The *variance* of Student's t with as many degrees of freedom as so few pairs have."""
    return (pairs - 1) / max(pairs - 3, 1)


def _shared(square: Tensor, var: Tensor, few: Tensor | float) -> Tensor:
    """Squares of errors from few pairs, which do not know them well: one that met no rare event states 0.

    Half of each is the average of the example's outputs, as shares of their *variances*, and the other half its own,
    widened by ``few`` to that of Student's t.
    """
    usable = (var > 0) & var.isfinite() & square.isfinite()
    count = usable.sum(-1, keepdim=True)
    share = torch.where(usable, square / torch.where(usable, var, 1), 0).sum(-1, keepdim=True) / count.clamp_min(1)
    return torch.where(usable & (count > 1), (few * square + share * var) / 2, few * square)

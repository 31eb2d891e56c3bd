"""Noise of any distribution: what of a ``torch.distributions.Distribution`` the methods need.

Methods that draw take it as it is.  All others take mean, variance, and covariance where it has one.

Quantiles of Student's t.  torch has neither its distribution function nor the inverse.

The lower tail is half the regularised incomplete beta function I_x(ν/2, 1/2) at x = ν/(ν + t²).  It is computed by its
continued fraction (NIST Digital Library of Mathematical Functions, 8.17.22).  With many degrees of freedom the quantile
is a series in 1/ν about the normal one (the same, 26.7.5 of Abramowitz and Stegun).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

import torch
import torch.distributions as td
from torch import Tensor
from torch.distributions import constraints

from momentgen.errors import InputError
from momentgen.laws.numerics.root import balanced_root
from momentgen.runtime import DistributedMoments, JointMoments, Moments
from momentgen.runtime.inputs import HALVES, least, readable

_NORMAL = (td.Normal, td.MultivariateNormal, td.LowRankMultivariateNormal)
#: distributions that are symmetric about their mean
_SYMMETRIC = (*_NORMAL, td.Laplace, td.StudentT, td.Uniform)

#: distributions of counts, and the largest count of a table
_COUNTS, _LEVELS = (td.Bernoulli, td.Binomial, td.Geometric, td.NegativeBinomial, td.Poisson), 4096
#: standard deviations from the mean that quantiles are looked for in, and how often the distance is halved
_REACH, _HALVINGS = 1e6, 80


class Elements(td.Distribution):
    """Independent values in the last dimension, each with a distribution of its own.

    Args:
        parts: distributions of single values, which broadcast to one batch shape.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, parts: Sequence[td.Distribution]) -> None:
        if any(part.event_shape for part in parts):
            raise InputError("noisy: expected a list of distributions of single values, got one of an event")
        self.parts = list(parts)
        self.has_rsample = all(part.has_rsample for part in parts)
        shape = torch.broadcast_shapes(*(part.batch_shape for part in parts))
        super().__init__(torch.Size((*shape, len(parts))), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Elements:
        return Elements([part.expand(batch_shape[:-1]) for part in self.parts])

    def _stacked(self, values: Iterable[Tensor]) -> Tensor:
        return torch.stack([value.expand(self.batch_shape[:-1]) for value in values], -1)

    @property
    def mean(self) -> Tensor:
        return self._stacked(part.mean for part in self.parts)

    @property
    def variance(self) -> Tensor:
        return self._stacked(part.variance for part in self.parts)

    def sample(self, sample_shape: Any = (), by: str = "sample") -> Tensor:
        own = (part.expand(self.batch_shape[:-1]) for part in self.parts)
        return torch.stack([getattr(part, by)(sample_shape) for part in own], -1)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.sample(sample_shape, "rsample")

    def icdf(self, value: Tensor) -> Tensor:
        own = zip(self.parts, value.unbind(-1), strict=True)
        return torch.stack([_quantile(part, one) for part, one in own], -1)


def _quantile(base: td.Distribution, probability: Tensor) -> Tensor:
    """Quantiles, by bisection where torch has the distribution function alone, as of Gamma.

    Raises:
        NotImplementedError: where it has neither, and where parameters need a gradient that bisection has not.
    """
    if isinstance(base, _COUNTS):
        return _level(base, probability)
    if isinstance(base, td.StudentT) and not base.df.requires_grad:
        return base.loc + base.scale * student_quantile(base.df, probability)
    try:
        return base.icdf(probability)
    except NotImplementedError:
        if base.mean.requires_grad or base.stddev.requires_grad:
            raise  # bisection has no derivative by the parameters
        base.cdf(base.mean)
    mean, reach = base.mean.double(), _REACH * base.stddev.double()
    least = getattr(base.support, "lower_bound", -torch.inf)
    low, high = ((mean + sign * reach).clamp_min(least).expand_as(probability) for sign in (-1, 1))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = base.cdf(middle) < probability
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def _level(base: td.Distribution, probability: Tensor) -> Tensor:
    """Quantiles of counts."""
    below = _table(base).cumsum(0).movedim(0, -1)
    wanted = probability.double().reshape(-1, *base.mean.shape).movedim(0, -1)
    found = torch.searchsorted(below.expand(*wanted.shape[:-1], -1).contiguous(), wanted.contiguous())
    return found.clamp_max(below.shape[-1] - 1).movedim(-1, 0).reshape(probability.shape).to(probability.dtype)


def _table(base: td.Distribution) -> Tensor:
    """Probabilities of the counts 0, 1, ..., shape ``(levels, *batch)``.

    Raises:
        NotImplementedError: where the table is too long, and where parameters need a gradient, which levels have not.
    """
    most = 1.0 if base.support is constraints.boolean else float((base.mean + 40 * base.stddev).max()) + 40
    if base.mean.requires_grad or base.stddev.requires_grad or most > _LEVELS:
        raise NotImplementedError
    levels = torch.arange(int(most) + 1, dtype=torch.float64).reshape(-1, *[1] * base.mean.dim())
    inside = levels <= getattr(base.support, "upper_bound", torch.inf)
    logs = type(base).log_prob(base, torch.where(inside, levels, 0))
    found = torch.where(inside, logs.double().exp(), 0)
    return found / found.sum(0)  # parameters of float32 have other sums


def is_discrete(base: td.Distribution) -> bool:
    """Whether a distribution is of counts, or one of some values is."""
    return any(map(is_discrete, base.parts)) if isinstance(base, Elements) else isinstance(base, _COUNTS)


def _symmetric(base: td.Distribution) -> bool:
    """Whether a distribution is symmetric about its mean."""
    return all(map(_symmetric, base.parts)) if isinstance(base, Elements) else isinstance(base, _SYMMETRIC)


class Noise:
    """Draws of the noise of a value.

    Args:
        distribution: whose draws are of the value's shape.
        like: the value.

    Attributes:
        mean: of the noise, of the value's shape.
        var: *variance*, likewise.
        covariance: of the values of an event, in the last two dimensions.  None for independent values, and where torch
            does not know it.
        is_known: whether variance and covariance are all of the covariance of the values.
        is_normal: whether it is a normal distribution.
        is_symmetric: whether it is symmetric about its mean.
        is_discrete: whether it is of counts, or one of some values is.

    Raises:
        InputError: if torch does not know a finite mean and variance, or the value's dtype does not hold the variance.
    """

    def __init__(self, distribution: td.Distribution, like: Tensor) -> None:
        self._distribution, self._like = distribution, like
        base = distribution
        while isinstance(base, td.Independent):
            base = base.base_dist
        name = self._name = type(base).__name__
        if any(isinstance(part, td.VonMises) for part in _parts(distribution)):
            raise InputError(
                "noisy: expected a distribution with a variance, got von Mises angles; torch knows their circular "
                "variance only. Draw them within the network, or give noise to the angle's sine and cosine"
            )
        try:
            mean, var = distribution.mean, distribution.variance
        except NotImplementedError:
            raise InputError(f"noisy: torch does not know mean and variance of the distribution {name}") from None
        if not bool((mean.isfinite() & var.isfinite()).all()):
            raise InputError(
                f"noisy: expected a distribution of finite mean and variance in {var.dtype}, got {name} without"
            )
        self.mean, self.var = (value.to(like.dtype).expand(like.shape) for value in (mean, var))
        refuse_lost(f"{name} noise, a variance", var.detach(), var.detach(), var.detach().to(like.dtype))
        self._refuse_certain()
        # A Wishart distribution calls its scale so, and not the covariance of its values.
        known = getattr(base, "covariance_matrix", None) if len(base.event_shape) == 1 else None
        self.covariance: Tensor | None = known
        self.is_known = known is not None or not base.event_shape
        self.is_normal, self.is_symmetric = isinstance(base, _NORMAL), _symmetric(base)
        self.is_discrete = is_discrete(base)

    def __repr__(self) -> str:
        return self._name

    def draw(self) -> Tensor:
        """One draw less its mean, of the value's shape; differentiable in the parameters where the distribution is."""
        given = self._distribution
        found: Tensor = given.rsample() if given.has_rsample else given.sample()
        return found.to(self._like.dtype) - self.mean

    def draws(self, count: int) -> Tensor:
        """So many draws less their mean, in front of the value's shape; without derivatives."""
        return self._distribution.sample((count,)).to(self._like.dtype) - self.mean

    def of_normal(self, z: Tensor) -> Tensor | None:
        """Noise less its mean as an increasing function of standard normal values, shape ``(..., *shape)``.

        None where torch does not know the distribution function, and for values that are dependent.
        """
        base = self._distribution
        while isinstance(base, td.Independent):
            base = base.base_dist
        try:
            if base.event_shape and not isinstance(base, Elements):
                return None
            found = _quantile(base, torch.special.ndtr(z))
        except NotImplementedError:
            return None
        return torch.where(self.var == 0, 0, found - self.mean)

    def atoms(self) -> Tensor | None:
        """Probabilities of 0, 1, ... where all values are counts of one distribution; None of others."""
        base = self._distribution
        while isinstance(base, td.Independent):
            base = base.base_dist
        alike = isinstance(base, _COUNTS) and bool((base.mean == base.mean.min()).all())
        if not alike or not bool((base.stddev == base.stddev.min()).all()):
            return None
        try:
            return _table(base).flatten(1)[:, 0] if base.mean.dim() else _table(base)
        except NotImplementedError:
            return None

    def expanded(self, like: Tensor) -> Noise:
        """The same noise of every example of a larger value."""
        return Noise(_expanded(like, self._distribution), like)

    def _refuse_certain(self) -> None:
        """Raise where the variance is 0 and draws differ: it has underflowed within the distribution."""
        certain = self.var == 0
        if not readable(certain) or not bool(certain.any()):
            return
        with torch.no_grad(), torch.random.fork_rng([certain.device] if certain.is_cuda else []):
            if bool((self.draw() != self.draw())[certain].any()):
                raise InputError(
                    f"noisy: the variance of {self._name} is 0 in {self._distribution.variance.dtype}, and its draws "
                    "differ; use float64 for its parameters, x and the network, or larger units"
                )


def refuse_lost(name: str, given: Tensor, exact: Tensor, held: Tensor) -> None:
    """Raise where a dtype does not hold a variance to half of its digits.

    The numbers ``given`` stand for *variances*: ``exact`` in their dtype or a wider one, ``held`` in the values'.

    Raises:
        InputError: naming the first that is lost.
    """
    if not readable(exact):
        return
    largest = torch.finfo(held.dtype).max
    lost = (given != 0) & ~((exact >= least(held.dtype)) & (exact <= largest))
    if bool(lost.any()):
        instead = "larger or smaller units" if held.dtype is torch.float64 else "float64 for x and the network"
        instead = f"float32 or {instead}" if held.dtype is torch.float16 else instead
        raise InputError(
            f"noisy: {held.dtype} does not hold the variance of {name} of {given[lost][0].item():.3g}; variances of "
            f"{least(held.dtype):.2g} to {largest:.2g} keep their digits; use {instead}"
        )


def _parts(distribution: td.Distribution) -> Iterator[td.Distribution]:
    """The distribution and those that it is made of, as wrappers and mixtures hold them."""
    yield distribution
    for value in vars(distribution).values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, td.Distribution):
                yield from _parts(part)


def with_distribution(x: Tensor, distribution: td.Distribution) -> Moments:
    """``x`` plus a draw of a distribution, as :func:`momentgen.noisy` says it."""
    noise = Noise(_expanded(x, distribution), x)
    if noise.mean.device != x.device:
        raise InputError(f"noisy: expected a distribution on {x.device} as x is, got one on {noise.mean.device}")
    mean = x + noise.mean
    if noise.covariance is None:
        return DistributedMoments.of(mean, noise.var, noise)
    return JointMoments.of(mean, noise.var, _factor(noise.covariance, x)).with_noise(noise)


def _expanded(x: Tensor, distribution: td.Distribution) -> td.Distribution:
    """The distribution with a draw for each value of ``x``."""
    event, batch = distribution.event_shape, distribution.batch_shape
    size = x.dim() - len(event)
    try:
        fits = size >= 0 and x.shape[size:] == event and torch.broadcast_shapes(batch, x.shape[:size]) == x.shape[:size]
    except RuntimeError:
        fits = False
    if not fits:
        raise InputError(
            f"noisy: a draw of the distribution, of batch shape {tuple(batch)} and event shape {tuple(event)}, does "
            f"not broadcast to x of shape {tuple(x.shape)}"
        )
    if batch == x.shape[:size]:
        return distribution
    try:
        return distribution.expand(x.shape[:size])
    except NotImplementedError:
        raise InputError(
            f"noisy: {type(distribution).__name__} has no expand: expected a batch shape of {tuple(x.shape[:size])}, "
            f"got {tuple(batch)}. Make it of that shape, or write its expand"
        ) from None


def _factor(covariance: Tensor, x: Tensor) -> Tensor:
    """A factor of the covariance of an example's values, flattened, of that of its events."""
    wide = covariance.float() if x.dtype in HALVES else covariance
    root = balanced_root((wide + wide.mT) / 2).to(x.dtype)
    if x.dim() == 1:
        return root
    blocks = root.expand(*x.shape[:-1], *root.shape[-2:]).reshape(len(x), -1, *root.shape[-2:])
    batch, count, size, _ = blocks.shape
    eye = torch.eye(count, dtype=blocks.dtype, device=blocks.device)
    return torch.einsum("bcij,cd->bcidj", blocks, eye).reshape(batch, count * size, count * size)


# torch.load of weights only: noise is a distribution of torch's, which holds tensors, distributions and transforms
_KINDS = [kind for kind in (*vars(td).values(), *vars(td.transforms).values()) if isinstance(kind, type)]
torch.serialization.add_safe_globals(
    [Noise, Elements, *(kind for kind in _KINDS if issubclass(kind, td.Distribution | td.Transform))]
)


#: degrees of freedom from which on the series is right to 1e-6 at eight standard deviations
_MANY: Final = 150.0
#: terms of the fraction for few degrees of freedom, and times the root of these
_TERMS, _MORE = 12, 3.0
#: logarithm of the largest quantile looked for, how often the distance to it is halved, and Newton's steps after that
_LOG_REACH, _LOG_HALVINGS, _STEPS = math.log(1e30), 9, 4


def student_quantile(df: Tensor, probability: Tensor) -> Tensor:
    """Quantiles of the standard distribution, float64; tensors broadcast."""
    df, probability = torch.broadcast_tensors(df.double(), probability.double())
    tail = probability.minimum(1 - probability)
    few = df.clamp_max(_MANY)
    low, high = torch.full_like(tail, -_LOG_REACH), torch.full_like(tail, _LOG_REACH)
    for _ in range(_LOG_HALVINGS):
        middle = (low + high) / 2
        beyond = _tail(few, middle.exp()) < tail
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    place = (low + high) / 2
    density = torch.lgamma((few + 1) / 2) - torch.lgamma(few / 2) - (few * math.pi).log() / 2
    for _ in range(_STEPS):  # for the logarithm of the tail, by that of the quantile
        t = place.exp()
        beyond = _tail(few, t)
        slope = t * (density - (few + 1) / 2 * (t.square() / few).log1p()).exp() / beyond
        place = (place + (beyond / tail).log() / slope).maximum(low).minimum(high)
    size = torch.where(df > _MANY, _series(df, -torch.special.ndtri(tail)), place.exp())
    return torch.where(probability < 0.5, -size, size)


def _series(df: Tensor, z: Tensor) -> Tensor:
    """The quantile with many degrees of freedom, by the normal one."""
    terms = ((1, 1), 4), ((5, 16, 3), 96), ((3, 19, 17, -15), 384), ((79, 776, 1482, -1920, -945), 92160)
    found = z
    for power, (coefficients, divisor) in enumerate(terms, 1):
        value = torch.zeros_like(z)
        for coefficient in coefficients:
            value = value * z.square() + coefficient
        found = found + value * z / (divisor * df**power)
    return found


def _tail(df: Tensor, t: Tensor) -> Tensor:
    """The probability of more than ``t``, which is not negative."""
    a, b = df / 2, torch.full_like(df, 0.5)
    x, rest = df / (df + t.square()), t.square() / (df + t.square())
    far = x < (a + 1) / (a + b + 2)  # there the fraction converges; else that of the complement does
    part = _incomplete(
        torch.where(far, a, b), torch.where(far, b, a), torch.where(far, x, rest), torch.where(far, rest, x)
    )
    return torch.where(far, part, 1 - part) / 2


def _incomplete(a: Tensor, b: Tensor, x: Tensor, rest: Tensor) -> Tensor:
    """I_x(a, b) with ``rest`` = 1 - x."""
    found = torch.ones_like(x)
    count = _TERMS + int(_MORE * float(a.max()) ** 0.5)
    for m in range(count, 0, -1):  # from the last term inwards
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        found = 1 + odd / (1 + even / found)
    scale = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b) + a * x.log() + b * rest.log()
    return (scale - a.log()).exp() / found

"""Pools.  Averages are affine; a maximum is a tree of the two-input rule ``maximum``, windows one dimension at a time.

An average of n independent inputs has variance Σ v / n², n being the divisor that
torch uses at that place.  A power-average of norm 1 is an average times the
kernel's size; of norm 2, a root of a sum of squares (:func:`root_of`).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.nn.activation import generated_op
from momentgen.nn.arithmetic import mul
from momentgen.nn.layer import Layer, known, square_root
from momentgen.runtime import Moments

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "maximum",
    "maximum_of",
    "root_of",
]


def _tuple(value: Any, dims: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,) * dims


class _AvgPool(Layer):
    """What the average pools share."""

    dims: int

    def moments(self, x: Moments) -> Moments:
        return known(self.plain(x.mean), self.plain(x.var) / self._divisor(x.var))

    def _divisor(self, like: Tensor) -> Tensor | int:
        """By how many inputs the sum is divided, at each place."""
        own = getattr(self, "divisor_override", None)
        if own:
            return cast(int, own)
        kernel = _tuple(self.kernel_size, self.dims)
        if not any(_tuple(self.padding, self.dims)) and not self.ceil_mode:
            return int(torch.Size(kernel).numel())
        # How many inputs a window holds, over the average of ones in it.
        average = self.plain(torch.ones((1, *like.shape[-self.dims :]), dtype=like.dtype, device=like.device))
        counts = [_window_counts(self, size, d) for d, size in enumerate(like.shape[-self.dims :])]
        return _outer(counts, like) / average[0]

    def statistics(self, x: Moments) -> Moments:
        n = int(torch.Size(_tuple(self.kernel_size, self.dims)).numel())
        return known(x.mean, x.var / n)


def _outer(factors: list[list[int]], like: Tensor) -> Tensor:
    """The outer product of one list of numbers a dimension, in the dtype of ``like``."""
    product = torch.ones((), dtype=like.dtype, device=like.device)
    for d, values in enumerate(factors):
        product = product * torch.tensor(values, dtype=like.dtype, device=like.device).view(
            -1, *[1] * (len(factors) - 1 - d)
        )
    return product


def _window_counts(pool: Any, size: int, dim: int) -> list[int]:
    """How many inputs each window holds along one dimension."""
    kernel, stride, padding = (_tuple(value, pool.dims)[dim] for value in (pool.kernel_size, pool.stride, pool.padding))
    starts = _starts(size, kernel, stride, padding, 1, pool.ceil_mode)
    return [min(start + kernel, size) - max(start, 0) for start in starts]


def _starts(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> list[int]:
    """Where the windows of a pool start along one dimension, as torch places them."""
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (reach + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (count - 1) * stride >= size + padding:
        count -= 1  # the last window must start inside the input or its left padding
    if count < 1:
        raise InputError(f"pool: a kernel of {kernel} (dilation {dilation}) does not fit an input of size {size}")
    return [place * stride - padding for place in range(count)]


class AvgPool1d(_AvgPool, torch.nn.AvgPool1d):
    """:class:`torch.nn.AvgPool1d` over moments."""

    dims = 1


class AvgPool2d(_AvgPool, torch.nn.AvgPool2d):
    """:class:`torch.nn.AvgPool2d` over moments."""

    dims = 2


class AvgPool3d(_AvgPool, torch.nn.AvgPool3d):
    """:class:`torch.nn.AvgPool3d` over moments."""

    dims = 3


def _adaptive_edges(size: int, wanted: int | None) -> tuple[list[int], list[int]]:
    """Start and length of the windows of an adaptive pool along one dimension."""
    count = size if wanted is None else wanted
    starts = [place * size // count for place in range(count)]
    return starts, [-(-(place + 1) * size // count) - start for place, start in enumerate(starts)]


class _AdaptiveAvgPool(Layer):
    """What the adaptive average pools share."""

    dims: int

    def moments(self, x: Moments) -> Moments:
        sizes = zip(x.mean.shape[-self.dims :], _tuple(self.output_size, self.dims), strict=True)
        lengths = [_adaptive_edges(size, wanted)[1] for size, wanted in sizes]
        return known(self.plain(x.mean), self.plain(x.var) / _outer(lengths, x.var))

    def statistics(self, x: Moments) -> Moments:
        raise InputError(f"{type(self).__name__}: how many places are averaged is not known for statistics of channels")


class AdaptiveAvgPool1d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool1d):
    """:class:`torch.nn.AdaptiveAvgPool1d` over moments."""

    dims = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool2d):
    """:class:`torch.nn.AdaptiveAvgPool2d` over moments."""

    dims = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool3d):
    """:class:`torch.nn.AdaptiveAvgPool3d` over moments."""

    dims = 3


# -------------------------------------------------------------- power averages


def root_of(square: Moments) -> Moments:
    """Moments of √S of a sum S of squares of normal variables, S taken as gamma distributed.

    With S of mean m and variance V, and a = m²/V, the mean is √m · Γ(a + ½) / (Γ(a) √a) and the variance m minus its
    square.  Exact where S is a certain number, or a multiple of a chi-squared variable (inputs of mean 0 and one
    variance); in between the two-moment approximation of Patnaik (1949, The non-central χ²- and F-distributions and
    their applications, Biometrika 36).

    Args:
        square: moments of S, any shape, in float64.
    """
    m, v = square
    some = m > 0
    u = torch.where(some, v, 0) / torch.where(some, m * m, 1)  # 1/a
    # log of Γ(a + ½)² / (Γ(a)² a): its asymptotic series for large a, where the gamma functions cancel.
    small = u < 1 / 16
    a = 1 / torch.where(small, 1, u)
    few = 2 * (torch.lgamma(a + 0.5) - torch.lgamma(a)) - a.log()
    w = torch.where(small, u, 0)
    many = w * (-1 / 4 + w * w * (1 / 96 + w * w * (-1 / 320 + w * w * 17 / 7168)))
    log_share = torch.where(small, many, few)
    root = square_root(m)
    return known(root * (log_share / 2).exp(), -m * torch.expm1(log_share))


class _LPPool(Layer):
    """What the power-average pools share: (Σ xᵖ)^(1/p); torch's norm 1 is a sum, and takes no absolute values."""

    dims: int

    def check_rule(self) -> None:
        if self.norm_type not in (1, 2):
            raise InputError(
                f"{type(self).__name__}: a rule for the norms 1 and 2 only, got norm_type={self.norm_type}; a normal "
                "variable to another power, summed and rooted, has no moments in closed form"
            )

    def moments(self, x: Moments) -> Moments:
        self.check_rule()
        size = int(torch.Size(_tuple(self.kernel_size, self.dims)).numel())
        average = _AVERAGES[self.dims](self.kernel_size, self.stride, ceil_mode=self.ceil_mode)
        if self.norm_type == 1:
            return known(self.plain(x.mean), size**2 * average.moments(x).var)
        wide = Moments(x.mean.double(), x.var.double())  # for squares of squares
        mean, var = average.moments(mul(wide, wide))
        root = root_of(Moments(size * mean, size**2 * var))
        return known(root.mean.to(x.mean.dtype), root.var.to(x.mean.dtype))


class LPPool1d(_LPPool, torch.nn.LPPool1d):
    """:class:`torch.nn.LPPool1d` over moments, of norm 1 (exact) or 2 (:func:`root_of`)."""

    dims = 1


class LPPool2d(_LPPool, torch.nn.LPPool2d):
    """:class:`torch.nn.LPPool2d` over moments, of norm 1 (exact) or 2 (:func:`root_of`)."""

    dims = 2


class LPPool3d(_LPPool, torch.nn.LPPool3d):
    """:class:`torch.nn.LPPool3d` over moments, of norm 1 (exact) or 2 (:func:`root_of`)."""

    dims = 3


_AVERAGES: dict[int, Any] = {1: AvgPool1d, 2: AvgPool2d, 3: AvgPool3d}


# ---------------------------------------------------------------------- maxima


def maximum(x1: Moments, x2: Moments) -> Moments:
    """Moments of max(X1, X2) for independent inputs, by the generated op ``maximum``.

    Raises:
        MissingRuleError: if the rule has not been built.
    """
    return generated_op("maximum", "a maximum of random inputs")(x1.mean, x1.var, x2.mean, x2.var)


def maximum_of(x: Moments, dim: int = 0) -> Moments:
    """Moments of the maximum along ``dim``, by a balanced tree of :func:`maximum` (Shekhovtsov & Flach 2018, 3.2).

    Raises:
        MissingRuleError: if the rule ``maximum`` has not been built.
        InputError: if there is nothing along ``dim``.
    """
    mean, var = x.mean.movedim(dim, 0), x.var.movedim(dim, 0)
    if not mean.shape[0]:
        raise InputError("maximum_of: expected at least one input along the dimension")
    while (n := mean.shape[0]) > 1:
        half = n // 2
        largest = maximum(Moments(mean[:half], var[:half]), Moments(mean[half : 2 * half], var[half : 2 * half]))
        mean = torch.cat([largest.mean, mean[2 * half :]])
        var = torch.cat([largest.var, var[2 * half :]])
    return known(mean[0], var[0])


def _maximum_of_windows(x: Moments, dim: int, starts: list[int], lengths: list[int], dilation: int) -> Moments:
    """The maximum of each window along ``dim``; places outside the input or the window do not count."""
    size, longest = x.mean.shape[dim], max(lengths)
    places = [start + dilation * offset for start in starts for offset in range(longest)]
    valid = [
        0 <= start + dilation * offset < size and offset < length
        for start, length in zip(starts, lengths, strict=True)
        for offset in range(longest)
    ]
    index = torch.tensor([min(max(place, 0), size - 1) for place in places], device=x.mean.device)
    windows = (len(starts), longest)
    mean, var = (part.index_select(dim, index).unflatten(dim, windows) for part in x)
    if not all(valid):
        # A certain value so far below every input of the tensor that it is never the largest.
        low = 2 * (x.mean.detach() - 40 * x.var.detach().sqrt()).amin().clamp(max=-1)
        mask = torch.tensor(valid, device=mean.device).view(*windows, *[1] * (mean.dim() - dim - 2))
        mean, var = torch.where(mask, mean, low), torch.where(mask, var, 0)
    return maximum_of(Moments(mean, var), dim + 1)


class _OfMaxima(Layer):
    """What all pools that take maxima share."""

    dims: int

    def check_rule(self) -> None:
        generated_op("maximum", type(self).__name__)
        if self.return_indices:
            raise InputError(f"{type(self).__name__}: a maximum of random inputs has no indices to return")


class _MaxPool(_OfMaxima):
    """What the max pools share."""

    ceil_mode: bool

    def moments(self, x: Moments) -> Moments:
        self.check_rule()
        for d in range(self.dims):
            kernel, stride, padding, dilation = (
                _tuple(value, self.dims)[d] for value in (self.kernel_size, self.stride, self.padding, self.dilation)
            )
            dim = x.mean.dim() - self.dims + d
            starts = _starts(x.mean.shape[dim], kernel, stride, padding, dilation, self.ceil_mode)
            x = _maximum_of_windows(x, dim, starts, [kernel] * len(starts), dilation)
        return x

    def statistics(self, x: Moments) -> Moments:
        n = int(torch.Size(_tuple(self.kernel_size, self.dims)).numel())
        return maximum_of(Moments(x.mean.expand(n, -1), x.var.expand(n, -1)))


class MaxPool1d(_MaxPool, torch.nn.MaxPool1d):
    """:class:`torch.nn.MaxPool1d` over moments."""

    dims = 1


class MaxPool2d(_MaxPool, torch.nn.MaxPool2d):
    """:class:`torch.nn.MaxPool2d` over moments."""

    dims = 2


class MaxPool3d(_MaxPool, torch.nn.MaxPool3d):
    """:class:`torch.nn.MaxPool3d` over moments."""

    dims = 3


class _AdaptiveMaxPool(_OfMaxima):
    """What the adaptive max pools share."""

    def moments(self, x: Moments) -> Moments:
        self.check_rule()
        for d, wanted in enumerate(_tuple(self.output_size, self.dims)):
            dim = x.mean.dim() - self.dims + d
            x = _maximum_of_windows(x, dim, *_adaptive_edges(x.mean.shape[dim], wanted), 1)
        return x


class AdaptiveMaxPool1d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool1d):
    """:class:`torch.nn.AdaptiveMaxPool1d` over moments."""

    dims = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool2d):
    """:class:`torch.nn.AdaptiveMaxPool2d` over moments."""

    dims = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool3d):
    """:class:`torch.nn.AdaptiveMaxPool3d` over moments."""

    dims = 3

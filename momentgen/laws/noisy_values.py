"""``noisy``: values with noise, the inputs of uncertain computations."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from momentgen.errors import InputError
from momentgen.laws.distributions import Elements, refuse_lost, with_distribution
from momentgen.laws.numerics.root import at_least, balanced_root, scale_of, square_root
from momentgen.runtime import JointMoments, Moments, NoisyMoments, SumMoments, Term
from momentgen.runtime.inputs import HALVES, readable

if TYPE_CHECKING:
    from jaxtyping import Float


@runtime_checkable
class Frame(Protocol):
    """An array of pandas or xarray."""

    def to_numpy(self) -> Any: ...


#: numbers that are no tensor
Numbers = int | float | np.number[Any] | list[Any] | tuple[Any, ...] | NDArray[Any] | Frame


def noisy(
    x: Float[Tensor, "*shape"] | Numbers,
    distribution: Distribution | Sequence[Distribution] | None = None,
    *,
    var: Float[Tensor, "*#shape"] | Numbers | None = None,
    std: Float[Tensor, "*#shape"] | Numbers | None = None,
    cov: Float[Tensor, "*batch values values"] | Numbers | None = None,
    shared: bool = False,
) -> Any:
    """``x`` with noise of that variance, standard deviation, covariance or distribution.

    With a distribution the noisy value is ``x`` plus a draw of it; its mean is that of ``x`` plus the distribution's.
    The methods ``controlled``, ``sample``, ``local`` and :func:`momentgen.monte_carlo` draw from it.  All others know
    mean, variance and covariance, and say in a note that they take it for normal.

    With ``cov`` the values of an example are correlated.  ``controlled`` knows that, ``sample``, ``local`` and
    :func:`momentgen.monte_carlo` draw from it; ``ap2`` takes the diagonal alone, and says so in a note
    (:func:`momentgen.laws.listening`).

    Every call makes a new source of noise.  Noisy values can be added, and multiplied by numbers; a converted network
    or :func:`momentgen.propagate` knows which noise its arguments share.

    Args:
        x: means, any shape.  A number, a list, and an array of NumPy, pandas or xarray are copied into a tensor.
            Numbers and lists become float64, which keeps the digits of measured values; arrays keep their precision.
            A tuple of means, with ``cov``, stands for several values that are correlated.
        distribution: of the noise, a ``torch.distributions.Distribution`` with finite mean and variance.  Batch and
            event shape together broadcast to the shape of ``x``, whose last dimensions are those of an event.  Every
            value of ``x``, or every event, has a draw of its own.  A list has one distribution for each value in the
            last dimension of ``x``.
        var: *variance* of independent noise, a number or a tensor that broadcasts to the shape of ``x``.
        std: standard deviation of independent noise.
        cov: *covariance* of the n values of an example, flattened, of the dtype of ``x``: shape ``(n, n)``, or
            ``(batch, n, n)``.  Dimension 0 of ``x`` is the batch, unless ``x`` is a vector and ``cov`` a matrix.  For
            a tuple the n values are those of all its means, in order.
        shared: whether all examples, dimension 0 of ``x``, have one draw in common, as a systematic error.

    Returns:
        Moments; for a tuple a tuple of moments.

    Raises:
        InputError: if not exactly one is given, it is negative or infinite, or its shape does not fit.  If ``x`` is
            not of floating point, or its dtype does not hold the variance to half of its digits: use float64 there.
            Also if ``cov`` is not symmetric and positive semidefinite, or torch knows no finite mean and variance of
            the distribution.

    >>> noisy(torch.zeros(2), std=0.5).var
    tensor([0.2500, 0.2500])
    >>> noisy(torch.zeros(2), torch.distributions.Exponential(2.0)).mean
    tensor([0.5000, 0.5000])
    >>> import momentgen
    >>> total = torch.nn.Linear(2, 1, bias=False)
    >>> _ = torch.nn.init.constant_(total.weight, 1.0)
    >>> x = noisy(torch.zeros(1, 2), cov=torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    >>> momentgen.convert(total.eval())(x).var.detach().round(decimals=3)
    tensor([[3.]])
    >>> readings = noisy([10.0, 20.0], std=0.3) + noisy(0.0, std=0.4, shared=True)  # random and systematic
    >>> readings.std
    tensor([0.5000, 0.5000], dtype=torch.float64)
    >>> momentgen.propagate(lambda r: r[1] - r[0], readings).std.round(decimals=3)  # 0.3 times the root of 2
    tensor(0.4240, dtype=torch.float64)
    >>> a, b = noisy((1.0, 2.0), cov=[[0.04, 0.03], [0.03, 0.04]])
    >>> momentgen.propagate(lambda a, b: a - b, a, b).var.round(decimals=3)
    tensor(0.0200, dtype=torch.float64)
    """
    if sum(given is not None for given in (distribution, var, std, cov)) != 1:
        raise InputError("noisy: expected one of distribution, var, std and cov")
    if type(x) is tuple:
        return _several(x, cov, shared)
    x = _means(x)
    if distribution is not None:
        law = _distribution(distribution)
        return _common(x, with_distribution(_example(x), law)) if shared else with_distribution(x, law)
    if cov is not None:
        known: Any = _covariance(cov, x)
        return _common(x, _correlated_noise(_example(x), known)) if shared else _correlated_noise(x, known)
    name, given = ("var", var) if std is None else ("std", std)
    square = _variance(x, name, given)
    try:
        square = square.expand(x.shape)
    except RuntimeError as error:
        raise InputError(
            f"noisy: {name} of shape {tuple(square.shape)} does not broadcast to {tuple(x.shape)}"
        ) from error
    if not shared:
        return NoisyMoments(x, square)
    like = _example(x)
    return _common(x, NoisyMoments(like, torch.ones_like(like)), square_root(square))


def _example(x: Tensor) -> Tensor:
    """Zeros of the shape of an example, with one example in front; of a number one number."""
    return torch.zeros((1, *x.shape[1:]) if x.dim() else (), dtype=x.dtype, device=x.device)


def _common(x: Tensor, noise: Moments, scale: Tensor | float = 1.0) -> SumMoments:
    """``x`` with noise that all examples have in common, times a scale."""
    return SumMoments.of(x, [Term(noise, scale)])


def _distribution(given: Any) -> Distribution:
    """The distribution that a user gives, also by a list."""
    if isinstance(given, list | tuple) and given and all(isinstance(one, Distribution) for one in given):
        return Elements(given)
    if not isinstance(given, Distribution):
        raise InputError(
            f"noisy: expected a torch.distributions.Distribution or a list of some, got {type(given).__name__}; give a "
            "variance or standard deviation by name, var= or std="
        )
    return given


def _means(x: Any) -> Tensor:
    """Means as a tensor of floating point.

    Raises:
        InputError: for what is none, with what to write.
    """
    if isinstance(x, Moments):
        raise InputError(
            "noisy: expected numbers or a tensor as means, got Moments. Add noise to a noisy value by "
            "x + momentgen.noisy(0.0, std=...), and to a result by momentgen.noisy(x.mean, var=x.var + ...)"
        )
    if isinstance(x, Tensor):
        if not x.is_floating_point():
            instead = (
                "torch.view_as_real(x), and torch.view_as_complex in the network" if x.is_complex() else "x.float()"
            )
            raise InputError(
                f"noisy: expected a tensor of floating point, got {x.dtype}, which holds no noise; use {instead}"
            )
        return x
    return _tensor("means", x)


def _tensor(name: str, given: Any) -> Tensor:
    """Numbers of Python, NumPy, pandas or xarray as a new tensor; whole numbers and Python's own in float64."""
    try:
        array = np.array(given.detach().cpu() if isinstance(given, Tensor) else given)
        whole = isinstance(given, numbers.Real | list | tuple) or array.dtype.kind in "iu"
        array = array.astype(np.float64) if whole and array.dtype.kind in "iuf" else array
        if array.dtype.kind == "f" and array.dtype.isnative:
            return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"noisy: expected numbers or a tensor as {name}, got {type(given).__name__} {given!r:.60}"
        ) from error
    came = f"{type(given).__name__} of {array.dtype}"
    raise InputError(
        f"noisy: expected numbers or a tensor as {name}, got {came}; write numpy.asarray(x, dtype=float) for its values"
    )


def _covariance(cov: Any, x: Tensor) -> Any:
    """A covariance as a tensor: one that is given as it is, other numbers as the means are."""
    return cov if isinstance(cov, Tensor | numbers.Real) else _tensor("cov", cov).to(x)


def _several(given: tuple[Any, ...], cov: Any, shared: bool) -> tuple[Moments, ...]:
    """Several noisy values of one covariance."""
    if cov is None or shared or not given:
        raise InputError(
            f"noisy: expected cov for a tuple of {len(given)} means, which are several values, got "
            f"{'shared=True' if shared else 'another noise'}. Make each by a call of its own, "
            "noisy(a, std=...), noisy(b, std=...). For one vector give a list, noisy([...], std=...)"
        )
    parts = [_means(one) for one in given]
    if any(part.device != parts[0].device for part in parts):
        raise InputError(f"noisy: expected means on one device, got {', '.join(str(part.device) for part in parts)}")
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    parts = [part.to(dtype) for part in parts]
    cov = _tensor("cov", cov).to(parts[0]) if isinstance(cov, numbers.Real) else _covariance(cov, parts[0])
    count, total = cov.shape[-1] if cov.dim() else 1, sum(part.numel() for part in parts)
    batch = parts[0].shape[:1]
    batched = all(part.dim() and part.shape[:1] == batch for part in parts) and (
        cov.dim() == 3 or count * batch[0] == total
    )
    if (count if not batched else count * batch[0]) != total or (cov.dim() == 3 and not batched):
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise InputError(
            f"noisy: expected cov of all {total} values of means of shapes {shapes}, got cov of shape "
            f"{tuple(cov.shape)}. Means with as many examples in front may have the covariance of one example"
        )
    size = (*batch, count) if batched else (count,)
    source = _correlated_noise(torch.zeros(size, dtype=dtype, device=parts[0].device), cov)
    start, made = 0, []
    for part in parts:
        shape = tuple(part.shape[1:] if batched else part.shape)
        made.append(SumMoments.of(part, [Term(source, 1.0, start, shape)]))
        start += torch.Size(shape).numel()
    return tuple(made)


def _variance(x: Tensor, name: str, given: Any) -> Tensor:
    """The *variance* that ``var`` or ``std`` gives, as ``x`` is, not yet expanded; see :func:`noisy`."""
    came = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
    expected = f"noisy: expected a number or a tensor for {name}, of real numbers, got {came}"
    given = (
        _tensor(name, given).to(x.device) if hasattr(given, "__array__") and not isinstance(given, Tensor) else given
    )
    try:
        wide = torch.as_tensor(given, device=x.device)
        if wide.is_complex() or wide.dtype is torch.bool:
            raise InputError(expected)
        # A list or number has its own digits, not those of torch's default dtype.
        wide = wide if isinstance(given, Tensor) else torch.as_tensor(given, dtype=torch.float64, device=x.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise error if isinstance(error, InputError) else InputError(expected) from error
    amount = wide.to(x.dtype)
    square = amount if name == "var" else amount * amount
    if readable(wide):
        exact = wide.detach().double()
        word, wrong = "variance" if name == "var" else "standard deviation", ~((exact >= 0) & exact.isfinite())
        if bool(wrong.any()):
            raise InputError(
                f"noisy: expected a {word} of at least 0 and finite, got {exact[wrong][0].item():.6g}"
                + (f" among {tuple(exact.shape)} values" if exact.dim() else "")
            )
        refuse_lost(f"a {name}", exact, exact if name == "var" else exact * exact, square.detach())
    return square


def _correlated_noise(x: Tensor, cov: Tensor) -> JointMoments:
    """``x`` with noise of a covariance; see :func:`noisy`."""
    alone = x.dim() == 1 and isinstance(cov, Tensor) and cov.dim() == 2
    batch, example = (torch.Size(), x.shape) if alone else (x.shape[:1], x.shape[1:])
    values = example.numel()
    if not isinstance(cov, Tensor) or cov.shape not in ((values, values), (*batch, values, values)):
        came = tuple(cov.shape) if isinstance(cov, Tensor) else type(cov).__name__
        expected = f"({values}, {values})" + "".join(f" or ({size}, {values}, {values})" for size in batch)
        raise InputError(f"noisy: expected cov of shape {expected} for x of shape {tuple(x.shape)}, got {came}")
    if cov.dtype is not x.dtype or cov.device != x.device:
        raise InputError(f"noisy: expected cov as x is, {x.dtype} on {x.device}, got {cov.dtype} on {cov.device}")
    wide = cov.float() if cov.dtype in HALVES else cov
    root = balanced_root((wide + wide.mT) / 2)
    if readable(cov) and cov.numel():
        # What is not the square of its root is no covariance, in units of each value's standard deviation.
        with torch.no_grad():
            size = scale_of(at_least(wide.diagonal(dim1=-2, dim2=-1), 0).sqrt())
            found, given = (part / size[..., :, None] / size[..., None, :] for part in (root.mT @ root, wide))
            away, allowed = (found - given).abs().amax(), torch.finfo(cov.dtype).eps ** 0.5 * given.abs().amax()
        if not bool(away <= allowed):
            raise InputError("noisy: cov is no covariance; it must be finite, symmetric and positive semidefinite")
    variances = cov.detach().diagonal(dim1=-2, dim2=-1)
    refuse_lost("cov, a variance", variances, variances, variances)
    var = cov.diagonal(dim1=-2, dim2=-1).reshape(*cov.shape[:-2], *example).expand(x.shape)
    return JointMoments.of(x, var, root.to(cov.dtype).expand(*batch, values, values))

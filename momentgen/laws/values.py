"""Values at the border: moments that are made of tensors, drawn from, checked, and handed back for laws.

The border (:mod:`momentgen.laws.border`) lifts them to laws.  Code here does not depend on the method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.distributions import Distribution

from momentgen.errors import InputError
from momentgen.laws import half
from momentgen.laws.distributions import refuse_lost, with_distribution
from momentgen.laws.law import Law
from momentgen.laws.nests import mapped
from momentgen.laws.numerics.root import matrix_root, square_root
from momentgen.laws.point import Point
from momentgen.runtime import JointMoments, Moments
from momentgen.runtime.inputs import DTYPES, alike, autocast_in_force, has_elements, kind, readable

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["as_moments", "certain", "check", "described", "draw", "lower", "noisy", "readable"]


def certain(value: Float[Tensor, "*shape"]) -> Moments:
    """A value without uncertainty: its variance is one zero, expanded."""
    return Moments(value, torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape))


def noisy(
    x: Float[Tensor, "*shape"],
    distribution: Distribution | None = None,
    *,
    var: Float[Tensor, "*#shape"] | float | None = None,
    std: Float[Tensor, "*#shape"] | float | None = None,
    cov: Float[Tensor, "*batch values values"] | None = None,
) -> Moments:
    """``x`` with noise of that variance, standard deviation, covariance or distribution.

    With a distribution the noisy value is ``x`` plus a draw of it; its mean is that of ``x`` plus the distribution's.
    The methods ``controlled``, ``sample``, ``local`` and :func:`momentgen.monte_carlo` draw from it.  All others know
    mean, variance and covariance, and say in a note that they take it for normal.

    With ``cov`` the values of an example are correlated.  ``controlled`` knows that, ``sample``, ``local`` and
    :func:`momentgen.monte_carlo` draw from it; ``ap2`` takes the diagonal alone, and says so in a note
    (:func:`momentgen.laws.listening`).

    Args:
        x: means, any shape.
        distribution: of the noise, a ``torch.distributions.Distribution`` with finite mean and variance.  Batch and
            event shape together broadcast to the shape of ``x``, whose last dimensions are those of an event.  Every
            value of ``x``, or every event, has a draw of its own.
        var: *variance* of independent noise, a number or a tensor that broadcasts to the shape of ``x``.
        std: standard deviation of independent noise.
        cov: *covariance* of the n values of an example, flattened, of the dtype of ``x``: shape ``(n, n)``, or
            ``(batch, n, n)``.  Dimension 0 of ``x`` is the batch, unless ``x`` is a vector and ``cov`` a matrix.

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
    """
    _expect_tensor(x)
    if not x.is_floating_point():
        instead = "torch.view_as_real(x), and torch.view_as_complex in the network" if x.is_complex() else "x.float()"
        raise InputError(
            f"noisy: expected a tensor of floating point, got {x.dtype}, which holds no noise; use {instead}"
        )
    if sum(given is not None for given in (distribution, var, std, cov)) != 1:
        raise InputError("noisy: expected one of distribution, var, std and cov")
    if distribution is not None:
        if not isinstance(distribution, Distribution):
            raise InputError(
                f"noisy: expected a torch.distributions.Distribution, got {type(distribution).__name__}; give a "
                "variance or standard deviation by name, var= or std="
            )
        return with_distribution(x, distribution)
    if cov is not None:
        return _correlated_noise(x, cov)
    name, given = ("var", var) if std is None else ("std", std)
    square = _variance(x, name, given)
    try:
        return Moments(x, square.expand(x.shape))
    except RuntimeError as error:
        raise InputError(
            f"noisy: {name} of shape {tuple(square.shape)} does not broadcast to {tuple(x.shape)}"
        ) from error


def _expect_tensor(x: object) -> None:
    """Raise for what is no tensor, with what to write."""
    if not isinstance(x, Tensor):
        instead = (
            "add the variances, Moments(x.mean, x.var + ...)" if isinstance(x, Moments) else "write torch.as_tensor(x)"
        )
        raise InputError(f"noisy: expected a tensor, got {type(x).__name__}; {instead}")


#: what the arguments of :func:`noisy` are called in messages
_WORDS = {"var": "variance", "std": "standard deviation"}


def _variance(x: Tensor, name: str, given: Any) -> Tensor:
    """The *variance* that ``var`` or ``std`` gives, as ``x`` is, not yet expanded; see :func:`noisy`."""
    came = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
    expected = f"noisy: expected a number or a tensor for {name}, of real numbers, got {came}"
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
        wrong = ~((exact >= 0) & exact.isfinite())
        if bool(wrong.any()):
            raise InputError(
                f"noisy: expected a {_WORDS[name]} of at least 0 and finite, got {exact[wrong][0].item():.6g}"
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
    wide = cov.float() if cov.dtype in (torch.float16, torch.bfloat16) else cov
    root = matrix_root((wide + wide.mT) / 2)[0].to(cov.dtype)
    if readable(cov) and cov.numel():
        # What is not the square of its root is no covariance.
        with torch.no_grad():
            given = root.to(wide.dtype)
            away = (given @ given - wide).abs().amax()
            allowed = torch.finfo(cov.dtype).eps ** 0.5 * wide.abs().amax()
        if not bool(away <= allowed):
            raise InputError("noisy: cov is no covariance; it must be finite, symmetric and positive semidefinite")
    variances = cov.detach().diagonal(dim1=-2, dim2=-1)
    refuse_lost("cov, a variance", variances, variances, variances)
    var = cov.diagonal(dim1=-2, dim2=-1).reshape(*cov.shape[:-2], *example).expand(x.shape)
    return JointMoments.of(x, var, root.expand(*batch, values, values))


def draw(x: Moments) -> Tensor:
    """One sample of ``x``, normal or of its noise's distribution, reparameterised: differentiable in what it is of."""
    if x.noise is not None:
        return cast(Tensor, x.mean + x.noise.draw())
    if isinstance(x, JointMoments):
        numbers = torch.randn(x.factor.shape[:-1], dtype=x.mean.dtype, device=x.mean.device)
        return x.mean + (numbers.unsqueeze(-2) @ x.factor).reshape(x.mean.shape)
    return x.mean + square_root(x.var) * torch.randn_like(x.mean)


def check(where: object, value: Moments) -> Moments:
    """``value``, its mean and variance of one shape and dtype, the variance not negative.

    Raises:
        InputError: otherwise.  Negative numbers are looked for in eager mode only: compiled code and ``torch.func``
            transforms have no values to look at.
    """
    if not alike(value):
        _check_pair(where, value)
    var = value.var
    if var.numel() and readable(var):
        # Numbers that an expanded tensor repeats are looked at once.
        once = var.detach() if var.requires_grad else var
        if 0 in var.stride():
            once = once[tuple(slice(0, 1) if step == 0 else slice(None) for step in var.stride())]
        least = once.min().item()
        if least < 0:
            raise InputError(
                f"{described(where)}: a variance must not be negative, got {least:g} as the least of shape "
                f"{tuple(var.shape)}"
            )
    return value


def _check_pair(where: object, value: Moments) -> None:
    """Raise for what :func:`check` says but the numbers; mean and variance of several dtypes pass under autocast."""
    mean, var = value
    if not isinstance(mean, Tensor) or not isinstance(var, Tensor):
        raise InputError(
            f"{described(where)}: expected Moments of two tensors, got {type(mean).__name__} and {type(var).__name__}"
        )
    for tensor in value:
        if not has_elements(tensor) or tensor.layout is not torch.strided:
            raise InputError(f"{described(where)}: expected strided tensors for mean and variance, got {kind(tensor)}")
    if mean.shape != var.shape or mean.device != var.device:
        raise InputError(
            f"{described(where)}: expected mean and variance of one shape and device, got {tuple(mean.shape)} on "
            f"{mean.device} and {tuple(var.shape)} on {var.device}"
        )
    mixed = mean.dtype != var.dtype and not autocast_in_force(mean.device.type)
    if mixed or mean.dtype not in DTYPES or var.dtype not in DTYPES:
        raise InputError(
            f"{described(where)}: expected mean and variance of one floating-point dtype, got {mean.dtype} and "
            f"{var.dtype}"
        )


def as_moments(where: object, value: object) -> Moments:
    """``value`` as moments, checked: a tensor (variance 0), moments or a law.

    Args:
        where: what asks, for the error's text.
        value: a tensor, :class:`~momentgen.Moments` or a law.

    Raises:
        InputError: for another type, and as :func:`check`.
    """
    if isinstance(value, Moments):
        return check(where, value)
    if isinstance(value, Law):
        return cast(Moments, lower(value))
    if isinstance(value, Tensor):
        return certain(value)
    length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    raise InputError(f"{described(where)}: expected a tensor or Moments, got {type(value).__name__}{length}")


def described(where: object) -> str:
    """A network or function, as errors call it."""
    if isinstance(where, torch.nn.Module):
        return f"{type(where).__name__}({where.extra_repr()})"
    return str(where)


def lower(nest: Any, wide: bool = False) -> Any:
    """What a network returned, with :class:`~momentgen.Moments` for laws and for tensors of floating point.

    Args:
        nest: what it returned.
        wide: whether moments of half precision become float32.
    """
    return mapped(_widened if wide else _lowered, nest)


def _widened(value: Any) -> Any:
    return half.widened(_parts_of(value))


def _lowered(value: Any) -> Any:
    found = _parts_of(value)
    return half.narrowed(found, value._dtype) if isinstance(value, Law) and value._dtype is not None else found


def _parts_of(value: Any) -> Any:
    """Moments for a law or a tensor of floating point, those of a law of half precision in float32."""
    if not isinstance(value, Law):
        return certain(value) if isinstance(value, Tensor) and value.is_floating_point() else value
    form = value._form()  # of a view of what has been written to, which may now be another law
    if not isinstance(value, Point):
        return Moments(*value._parts())
    return certain(form) if form.is_floating_point() else form

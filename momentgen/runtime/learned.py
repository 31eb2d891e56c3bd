r"""Parameters that are tensors: moments of f at other parameters for each element, with gradients in these.

A kernel takes numbers for its parameters.  Where f is another function in other units,

    f(x; p) = A(p) g((x - c(p))/h(p)) + B(p),

its moments are those of the kernel at its defaults, or at p0.  Torch maps mean and variance before and after, so that
gradients in p follow from the certified partials.  Where f is affine in its parameters, the mean is too.  The variance
is then a quadratic form, which the kernel's values at a few numbers determine.  Maps are in float64 where the device
has it: a difference from a kink, and what interpolation cancels, keep their digits.  Kernels run in
float64 on the CPU.  On a GPU Triton's run in float32, and float64 tensors take the PyTorch code.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.runtime import autograd
from momentgen.runtime.kernel import has_float64
from momentgen.runtime.moments import Moments
from momentgen.runtime.parameters import Parameter

if TYPE_CHECKING:
    from jaxtyping import Float

    from momentgen.runtime.op import Op

__all__ = ["Rescaled", "Scaling", "by_tensors", "rescaled"]

#: a number or a tensor
Value = Any
Inner = Callable[..., Any]


@dataclass(frozen=True)
class Scaling:
    """f in other units: f(x) = scale·g((x - centre)/width) + offset, functions of the parameters, all by name.

    Args:
        centre, width, scale, offset: of one value for each parameter of the rule, numbers or tensors alike.
    """

    centre: Inner
    width: Inner
    scale: Inner
    offset: Inner

    def at(self, params: Mapping[str, Value]) -> tuple[Value, Value, Value, Value]:
        """Centre, width, scale and offset."""
        centre, width, scale, offset = (
            value if isinstance(value, Tensor) else float(value)
            for value in (f(**params) for f in (self.centre, self.width, self.scale, self.offset))
        )
        return centre, width, scale, offset


def kernel_dtype(inputs: Tensor) -> torch.dtype:
    """In which dtype the kernel runs: float32 where that is the kernel of a GPU."""
    return torch.float64 if inputs.dtype is torch.float64 or inputs.is_cpu else torch.float32


def _mapped(inputs: Sequence[Tensor], params: Mapping[str, Value]) -> tuple[list[Tensor], dict[str, Value]]:
    """Inputs and parameters in the dtype of maps, float64 where the device has it; numbers as floats."""
    dtype = torch.float64 if has_float64(inputs[0].device) else torch.float32
    values = {n: w.to(dtype) if isinstance(w, Tensor) else float(w) for n, w in params.items()}
    return [tensor.to(dtype) for tensor in inputs], values


def _by_kernel(call: Callable[[Tensor, Tensor], Any], mean: Tensor, var: Tensor, dtype: torch.dtype) -> Moments:
    """Moments by a kernel of one dtype, in the inputs' own."""
    found = call(mean.to(dtype), var.to(dtype))
    return Moments(found.mean.to(mean.dtype), found.var.to(var.dtype))


def by_tensors(
    op: Op,
    scaling: Scaling | None,
    affine: Sequence[str],
    inputs: Sequence[Float[Tensor, "*shape"]],
    params: Mapping[str, Value],
    variant: str | None = None,
) -> Moments:
    """Mean and *variance* of an op at parameters of which some are tensors.

    Args:
        op: the op, whose other parameters are numbers.
        scaling: f in other units, where it is that.
        affine: the parameters in which f is affine, all together.
        inputs: mean and *variance*, of one shape.
        params: by name; tensors are floating point and broadcast to the inputs' shape.
        variant: as in a call of the op.

    Raises:
        InputError: if a parameter cannot be a tensor, does not broadcast, or is out of its range.
    """
    mean, var = inputs
    learned = {name: value for name, value in params.items() if isinstance(value, Tensor)}
    known = {p.name: p for p in op.parameters}
    for name, value in learned.items():
        if name not in known:
            raise InputError(f"{op.name}: unknown parameter {name!r}; its parameters: {', '.join(known) or 'none'}")
        _check_tensor(op.name, known[name], value, mean, ranged=name not in affine)
    numbers = {p.name: p.default for p in op.parameters} | {n: v for n, v in params.items() if n not in learned}
    wide, exact = _mapped((mean, var), learned)
    dtype = kernel_dtype(mean)
    if set(learned) <= set(affine):
        found = _interpolated(op, wide, numbers, {known[n]: w for n, w in exact.items()}, variant, dtype)
    elif scaling is not None:
        start = scaling.at({**numbers, **{n: known[n].default for n in learned}})
        here = scaling.at({**numbers, **exact})
        at_start = {n: v for n, v in numbers.items() if v is not None}
        found = _in_units(lambda *at: op(*at, variant=variant, **at_start), wide, start, here, dtype)
    else:
        names = ", ".join(learned)
        raise InputError(
            f"{op.name}: expected numbers for {names}, got a tensor; only parameters that move or scale f, or in which "
            "it is affine, can be learned"
        )
    return Moments(*[value.to(mean.dtype) for value in found])


def _check_tensor(op: str, parameter: Parameter, value: Tensor, mean: Tensor, *, ranged: bool) -> None:
    what = f"{op}: parameter {parameter.name}"
    if not value.dtype.is_floating_point:
        raise InputError(f"{what} must be a number or a floating-point tensor, got {value.dtype}")
    try:
        shape = torch.broadcast_shapes(value.shape, mean.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        shape = torch.Size()
    if shape != mean.shape:
        raise InputError(
            f"{what}: expected a shape that broadcasts to that of the mean, {tuple(mean.shape)}, got "
            f"{tuple(value.shape)}. One value a channel of images is of shape (channels, 1, 1)"
        )
    if value.device.type != "cpu" or torch.compiler.is_compiling() or autograd.transformed():
        return
    low, high = (parameter.low, parameter.high) if ranged else (-math.inf, math.inf)
    plain = value.detach()
    outside = plain[~((plain >= low) & (plain <= high) & plain.isfinite())]
    if outside.numel():
        raise InputError(f"{what} must be in {parameter.range if ranged else '(-inf, inf)'}, got {float(outside[0])!r}")


def _in_units(
    moments: Callable[[Tensor, Tensor], Any],
    inputs: Sequence[Tensor],
    start: Sequence[Value],
    here: Sequence[Value],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Moments in units ``here`` from those in units ``start``; units are centre, width, scale and offset.

    The kernel runs in ``dtype``.
    """
    mean, var = inputs
    centre, width, scale, offset = start
    centre1, width1, scale1, offset1 = here
    per = width / width1
    inner = _by_kernel(moments, (mean - centre1) * per + centre, var * per * per, dtype)
    factor = scale1 / scale
    return factor * (inner.mean - offset) + offset1, factor * factor * inner.var


def _interpolated(
    op: Op,
    inputs: Sequence[Tensor],
    numbers: Mapping[str, float | None],
    learned: Mapping[Parameter, Tensor],
    variant: str | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Mean and variance from those at numbers, by kernels of ``dtype``: f is affine in the learned parameters."""
    mean, var = inputs
    ends = {p: _ends(p) for p in learned}
    shares = {p: (value - ends[p][0]) / (ends[p][1] - ends[p][0]) for p, value in learned.items()}

    def at(places: Mapping[Parameter, float]) -> Any:
        """At so much of the way from one end of each parameter to the other."""
        moved = {p.name: ends[p][0] + places.get(p, 0.0) * (ends[p][1] - ends[p][0]) for p in learned}
        return _by_kernel(lambda *here: op(*here, variant=variant, **{**numbers, **moved}), mean, var, dtype)

    start = at({})
    found, spread = start.mean, start.var
    whole: dict[Parameter, Tensor] = {}
    for p, t in shares.items():
        half, end = at({p: 0.5}), at({p: 1.0})
        found = found + t * (end.mean - start.mean)
        whole[p] = end.var - start.var
        curve = 2 * (end.var - 2 * half.var + start.var)
        spread = spread + t * (whole[p] - curve) + t * t * curve
    for p, q in itertools.combinations(shares, 2):
        both = at({p: 1.0, q: 1.0}).var - start.var - whole[p] - whole[q]
        spread = spread + shares[p] * shares[q] * both
    return found, torch.where(spread < 0, 0.0, spread)  # clamp has no derivative at 0 in torch 2.14


def _ends(parameter: Parameter) -> tuple[float, float]:
    """Two values of a parameter, far enough apart."""
    default = parameter.default or 0.0
    low = parameter.low if math.isfinite(parameter.low) else min(default, parameter.high) - 1.0
    high = parameter.high if math.isfinite(parameter.high) else max(default, low) + 1.0
    return low, high


class Rescaled:
    """An op in units that are learned: the moments of scale·f((X - centre)/width) + offset; :func:`rescaled` makes it.

    It stands where an op of one random input does, as in :func:`momentgen.laws.activation`.
    """

    inputs = 1

    def __init__(self, op: Op, scaling: Scaling, parameters: Sequence[str]) -> None:
        self.op, self.scaling = op, scaling
        self.name = f"{op.name}, rescaled"
        self.parameters = tuple(Parameter(name) for name in parameters)

    def __call__(
        self,
        mean: Float[Tensor, "*shape"],
        var: Float[Tensor, "*shape"],
        *,
        variant: str | None = None,
        **params: Value,
    ) -> Moments:
        """Mean and *variance*, with gradients in the parameters that are tensors.

        Args:
            mean, var: as the op takes them.
            variant: of the op.
            params: by name, numbers or floating-point tensors that broadcast to the mean's shape.

        Raises:
            InputError: if a parameter is missing, unknown, or does not broadcast.
        """
        names = [parameter.name for parameter in self.parameters]
        if set(params) != set(names):
            raise InputError(
                f"{self.name}: expected the parameters {', '.join(names)}, got {', '.join(params) or 'none'}"
            )
        for parameter in self.parameters:
            if isinstance(value := params[parameter.name], Tensor):
                _check_tensor(self.name, parameter, value, mean, ranged=True)
        wide, exact = _mapped((mean, var), params)
        units, plain = self.scaling.at(exact), (0.0, 1.0, 1.0, 0.0)
        found = _in_units(lambda *at: self.op(*at, variant=variant), wide, plain, units, kernel_dtype(mean))
        return Moments(*[value.to(mean.dtype) for value in found])


def rescaled(op: Op, **units: Callable[..., Value]) -> Rescaled:
    """An op whose input and output are moved and stretched by parameters that may be learned.

    Args:
        op: of one random input, with its parameters at their defaults.
        units: any of ``centre``, ``width``, ``scale`` and ``offset``, functions of parameters that their arguments
            name.  The result has the moments of scale·f((X - centre)/width) + offset; a width may not be 0.

    Raises:
        InputError: for other names, or an op of several inputs.

    >>> import momentgen
    >>> swish = rescaled(momentgen.generated.silu, width=lambda beta: 1 / beta, scale=lambda beta: 1 / beta)
    >>> beta = torch.tensor(1.5, requires_grad=True)
    >>> swish(torch.zeros(2), torch.ones(2), beta=beta).mean.sum().backward()
    >>> bool(beta.grad > 0)
    True
    """
    usual = {"centre": 0.0, "width": 1.0, "scale": 1.0, "offset": 0.0}
    unknown = [name for name in units if name not in usual]
    if unknown or op.inputs != 1:
        came = f"{unknown[0]!r}" if unknown else f"an op of {op.inputs} inputs"
        raise InputError(f"rescaled: expected centre, width, scale or offset of an op of one input, got {came}")
    names = dict.fromkeys(name for function in units.values() for name in inspect.signature(function).parameters)

    def called(name: str) -> Inner:
        if name not in units:
            return lambda **params: usual[name]
        own = tuple(inspect.signature(units[name]).parameters)
        return lambda **params: units[name](**{name: params[name] for name in own})

    chosen = {name: called(name) for name in usual}
    return Rescaled(op, Scaling(**chosen), tuple(names))

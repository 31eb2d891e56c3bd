"""What a caller passes to an op beside tensors: its variant, and scalar parameters as the float32 kernels take them.

A parameter ``p`` reaches a float32 kernel as two floats, ``p_hi = float32(p)``
and ``p_lo = float32(p - p_hi)``: together they carry 48 bits of it.
"""

from __future__ import annotations

import ctypes
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass

from momentgen.errors import InputError

__all__ = ["MEAN_AND_VARIANCE", "Parameter", "input_names", "resolve", "split"]

#: what an op returns of f
MEAN_AND_VARIANCE = ("mean", "var")


@dataclass(frozen=True)
class Parameter:
    """A scalar parameter of an op.

    Args:
        name: the keyword it is passed by.
        default: its value when none is given; ``None`` makes it required.
        low: least value allowed; infinite where unbounded.
        high: greatest value allowed; infinite where unbounded.
        doc: one line for the op's documentation.
        code: what generated code calls it, where that is not its name.

    >>> print(Parameter("negative_slope", 0.01, 0.0, 1.0))
    negative_slope in [0, 1], default 0.01
    """

    name: str
    default: float | None = None
    low: float = -math.inf
    high: float = math.inf
    doc: str = ""
    code: str = ""

    @property
    def range(self) -> str:
        """The range in interval notation; an infinite end is never included."""
        left = "(" if self.low == -math.inf else "["
        right = ")" if self.high == math.inf else "]"
        return f"{left}{self.low:g}, {self.high:g}{right}"

    def __str__(self) -> str:
        default = "required" if self.default is None else f"default {self.default:g}"
        return f"{self.name} in {self.range}, {default}"

    def contains(self, value: float) -> bool:
        """Whether ``value`` is finite and in the range."""
        # Plain comparisons, false for NaN: they also trace under torch.compile.
        return self.low <= value <= self.high and -math.inf < value < math.inf


def input_names(inputs: int, covariance: bool = False) -> tuple[str, ...]:
    """The tensors that an op of so many random inputs takes, in order.

    >>> input_names(1), input_names(2, covariance=True)
    (('mean', 'var'), ('mean1', 'var1', 'mean2', 'var2', 'cov'))
    """
    suffixes = ("",) if inputs == 1 else tuple(str(i + 1) for i in range(inputs))
    names = tuple(moment + suffix for suffix in suffixes for moment in ("mean", "var"))
    return (*names, "cov") if covariance else names


def resolve(op: str, parameters: tuple[Parameter, ...], given: Mapping[str, object]) -> tuple[float, ...]:
    """Values of all parameters, in order.

    Raises:
        InputError: naming the op, the parameter, its range and the value that came.
    """
    values = []
    for parameter in parameters:
        value = given.get(parameter.name, parameter.default)
        if value is None:
            raise InputError(f"{op}: parameter {parameter.name} is required ({parameter})")
        number = value if isinstance(value, float) else _number(op, parameter, value)
        if not parameter.contains(number):
            raise InputError(f"{op}: parameter {parameter.name} must be in {parameter.range}, got {number!r}")
        values.append(number)
    unknown = [name for name in given if all(name != p.name for p in parameters)]
    if unknown:
        known = ", ".join(p.name for p in parameters) or "none"
        raise InputError(f"{op}: unknown parameter {unknown[0]!r}; its parameters: {known}")
    return tuple(values)


def _number(op: str, parameter: Parameter, value: object) -> float:
    # numpy's scalars are numbers.Real; a tensor is not, and its gradient would be lost.
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(
            f"{op}: parameter {parameter.name} takes a Python number in {parameter.range}, got {type(value).__name__}"
        )
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{op}: parameter {parameter.name} must be in {parameter.range}, got one beyond it") from None


def split(op: str, value: float) -> tuple[float, float]:
    """The float32 pair ``(hi, lo)`` whose sum is ``value`` to 48 bits.

    Raises:
        InputError: if ``value`` overflows float32.

    >>> hi, lo = split("leaky_relu", 0.01)
    >>> hi == 0.01, abs(hi + lo - 0.01) < 1e-17
    (False, True)
    """
    high = ctypes.c_float(value).value
    if math.isinf(high):
        raise InputError(f"{op}: parameter value {value!r} is beyond the range of float32")
    return high, ctypes.c_float(value - high).value

"""The primitives of programs: one row each, from which all that reads, runs or writes programs follows."""

from __future__ import annotations

import enum
from collections.abc import Callable
from operator import methodcaller
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Type(enum.Enum):
    """Type of a value in a program."""

    __hash__ = object.__hash__  # as of :class:`Op`

    F32 = "f32"
    F64 = "f64"
    I32 = "i32"
    BOOL = "bool"


#: types of real numbers; a program has one of them
REALS = (Type.F32, Type.F64)
_TYPES = {"f": Type.F32, "d": Type.F64, "i": Type.I32, "b": Type.BOOL, "t": Type.F32}


def fma(a: Array, b: Array, c: Array) -> Array:
    """a*b + c in float32, rounded once, with subnormal results and overflow right.

    The product is exact in float64, only the sum and the last conversion round.  Two roundings differ from one only if
    the float64 sum falls on a midpoint of two float32 numbers, or if float32 rounds it below its normal range.  Those
    few elements are done again with the sum rounded to odd, after which the conversion is right (Boldo and Melquiond,
    "Emulation of FMA and correctly rounded sums", 2008).

    >>> float(fma(np.float32(1 + 2**-12), np.float32(1 - 2**-12), np.float32(-1))) == -(2.0**-24)
    True
    """
    with np.errstate(all="ignore"):
        product = np.multiply(a, b, dtype=np.float64)
        total = product + c
        result = total.astype(np.float32)
        hit = (total.view(np.int64) & 0x1FFFFFFF) == 0x10000000
        hit |= (np.abs(result) < 2.0**-126) & (total != 0.0)
        return np.where(hit, _to_odd(product, c, total).astype(np.float32), result) if hit.any() else result


def _to_odd(x: Array, y: Array, total: Array) -> Array:
    """x + y rounded to odd, given ``total``, the sum rounded to nearest."""
    part = total - x
    error = (x - (total - part)) + (y - part)
    bits = total.view(np.int64)
    away = (error > 0.0) == (total > 0.0)
    inexact_and_even = ((error < 0.0) | (error > 0.0)) & ((bits & 1) == 0)
    return np.where(inexact_and_even, bits + np.where(away, 1, -1), bits).view(np.float64)


_AS_I32, _AS_F32 = methodcaller("view", np.int32), methodcaller("view", np.float32)


def _signed(operation: Callable[..., Array], mask: int) -> Callable[[Array], Array]:
    """An operation on the bits of float32 numbers."""
    return lambda a: operation(a.view(np.int32), np.int32(mask)).view(np.float32)


def _nothing(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("this primitive is not computed from its operands alone")


class Op(enum.Enum):
    """The primitives.  Semantics are those of IEEE 754 binary32, or binary64, with gradual underflow.

    ``NEG`` and ``ABS`` touch the sign bit only (also of a NaN).  Comparisons are
    false when an operand is NaN.  Integer arithmetic wraps; ``ISHR`` is
    arithmetic; shift counts are constants from 0 to 31.  ``EXP``, ``LOG`` and ``ROUND`` are of binary64 alone.

    Attributes:
        value: the name, in certificates too.
        operands, result: types, in the rows a letter each.  ``f`` is that of the program's real numbers, here F32, and
            ``d`` F64; ``t`` is ``f`` or ``i``.
        c: C's text, over ``float`` or ``double`` and ``uint32_t``, whose arithmetic wraps.
        triton: Triton's text; empty in rows of binary64 alone.
        numpy: NumPy's function of the operands.
        run: the interpreter's text; f is a float, i an int32_t (a truth value too), u a uint32_t.
        latency: cycles until the result can be used, about what x86 cores of the last ten years take.
        commutes: whether the first two operands may change places.
        torch: PyTorch's text; empty in rows of binary32 alone.

    >>> Op.FMA.value, len(Op.FMA.operands), Op.FMA.result, Op("fma") is Op.FMA
    ('fma', 3, <Type.F32: 'f32'>, True)
    """

    __hash__ = object.__hash__  # members are one object each; Enum hashes their names, and ablation does so often

    operands: tuple[Type, ...]
    result: Type
    c: str
    triton: str
    numpy: Callable[..., Array]
    run: str
    latency: int
    commutes: bool
    torch: str

    def __new__(
        cls,
        name: str,
        signature: str,
        c: str = "",
        triton: str = "",
        numpy: Callable[..., Array] = _nothing,
        run: str = "",
        latency: int = 1,
        commutes: bool = False,
        torch: str | None = None,
    ) -> Op:
        self = object.__new__(cls)
        self._value_ = name
        types = [_TYPES[letter] for letter in signature.replace(":", "")]
        self.operands = tuple(types[:-1])
        self.result = types[-1]
        self.c, self.triton, self.numpy, self.run = c, triton, numpy, run
        self.latency, self.commutes = latency, commutes
        self.torch = c if torch is None else torch
        return self

    INPUT = "input", ":f"  # attribute name: which input of the kernel (one value an element)
    PARAM = "param", ":f"  # attribute name: which scalar parameter (one value a call)
    CONST_F32 = "const_f32", ":f"  # attribute bits
    CONST_F64 = "const_f64", ":d"  # attribute bits
    CONST_I32 = "const_i32", ":i"  # attribute bits
    ADD = "add", "ff:f", "{} + {}", "{} + {}", np.add, "f[k] = fa[k] + fb[k]", 4, True
    SUB = "sub", "ff:f", "{} - {}", "{} - {}", np.subtract, "f[k] = fa[k] - fb[k]", 4
    MUL = "mul", "ff:f", "{} * {}", "{} * {}", np.multiply, "f[k] = fa[k] * fb[k]", 4, True
    # Triton's own / and sqrt are approximate.
    DIV = "div", "ff:f", "{} / {}", "tl.div_rn({}, {})", np.divide, "f[k] = fa[k] / fb[k]", 12
    SQRT = "sqrt", "f:f", "SQRT({})", "tl.sqrt_rn({})", np.sqrt, "f[k] = sqrtf(fa[k])", 20, False, "torch.sqrt({})"
    # a*b + c, rounded once
    FMA = (
        *("fma", "fff:f", "FMA({}, {}, {})", "tl.fma({}, {}, {})", fma, "f[k] = fmaf(fa[k], fb[k], fc[k])"),
        *(4, True, "{} * {} + {}"),
    )
    # Before version 3.9 Triton's unary minus is 0 - x, which is wrong at zero.
    NEG = "neg", "f:f", "-{}", "{} * -1.0", _signed(np.bitwise_xor, -(2**31)), "u[k] = ua[k] ^ 0x80000000u"
    # Not torch.abs, whose derivative at 0 is 0: at a mean of 0 all selects are on this side.
    ABS = (
        *("abs", "f:f", "ABS({})", "tl.abs({})", _signed(np.bitwise_and, 2**31 - 1), "u[k] = ua[k] & 0x7fffffffu"),
        *(1, False, "torch.where({0} < 0.0, -{0}, {0})"),
    )
    LT = "lt", "ff:b", "{} < {}", "{} < {}", np.less, "i[k] = fa[k] < fb[k]", 4
    LE = "le", "ff:b", "{} <= {}", "{} <= {}", np.less_equal, "i[k] = fa[k] <= fb[k]", 4
    EQ = "eq", "ff:b", "{} == {}", "{} == {}", np.equal, "i[k] = fa[k] == fb[k]", 4, True
    AND = "and", "bb:b", "{} & {}", "{} & {}", np.logical_and, "i[k] = ia[k] & ib[k]", 1, True
    OR = "or", "bb:b", "{} | {}", "{} | {}", np.logical_or, "i[k] = ia[k] | ib[k]", 1, True
    NOT = "not", "b:b", "!{}", "~{}", np.logical_not, "i[k] = ia[k] ^ 1", 1, False, "~{}"
    SELECT = (
        *("select", "btt:t", "{} ? {} : {}", "tl.where({}, {}, {})", np.where, "i[k] = ia[k] ? ib[k] : ic[k]"),
        *(2, False, "torch.where({}, {}, {})"),
    )
    # within one unit in the last place, 0 below 1e-307
    EXP = "exp", "f:f", "exp64({})", "", np.exp, "", 40, False, "torch.exp({})"
    # within two units in the last place, -745 at 0, NaN below
    LOG = "log", "f:f", "log64({})", "", np.log, "", 40, False, "torch.log({})"
    # to a whole number, ties to even, of less than 2^51; a sum would have another derivative
    ROUND = "round", "f:f", "({} + 0x1.8p52) - 0x1.8p52", "", np.rint, "", 8, False, "torch.round({})"
    F32_AS_I32 = "f32_as_i32", "f:i", "as_bits({})", "{}.to(tl.int32, bitcast=True)", _AS_I32, "i[k] = ia[k]"
    I32_AS_F32 = "i32_as_f32", "i:f", "as_float({})", "{}.to(tl.float32, bitcast=True)", _AS_F32, "i[k] = ia[k]"
    IADD = "iadd", "ii:i", "{} + {}", "{} + {}", np.add, "u[k] = ua[k] + ub[k]", 1, True
    ISUB = "isub", "ii:i", "{} - {}", "{} - {}", np.subtract, "u[k] = ua[k] - ub[k]"
    ISHL = "ishl", "ii:i", "{} << {}", "{} << {}", np.left_shift, "u[k] = ua[k] << ub[k]"
    # in C the only one that looks at the sign
    ISHR = "ishr", "ii:i", "(uint32_t)((int32_t){} >> {})", "{} >> {}", np.right_shift, "i[k] = ia[k] >> ib[k]"
    IAND = "iand", "ii:i", "{} & {}", "{} & {}", np.bitwise_and, "u[k] = ua[k] & ub[k]", 1, True
    IOR = "ior", "ii:i", "{} | {}", "{} | {}", np.bitwise_or, "u[k] = ua[k] | ub[k]", 1, True


CONSTANTS = (Op.CONST_F32, Op.CONST_F64, Op.CONST_I32)
LEAVES = (Op.INPUT, Op.PARAM, *CONSTANTS)

"""Fourier transforms, and complex values: a real and an imaginary part, each a law of its own.

A transform is a linear map along its dimensions (:func:`~momentgen.laws.rules.matrices.along`), one for each part.  So
means and each part's variance are exact, and covariances where the law knows them.  ``Diagonal`` takes the two parts as
independent, as it does all values.  Complex values have rules for linear functions and products; a network returns
their parts, not them.
"""

from __future__ import annotations

import itertools
from typing import Any, cast

import torch
from torch import Tensor

from momentgen.laws.complex import COMPLEX, Complex, complex_of
from momentgen.laws.covariance import Covariance
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.law import Law, rule, tensor_of
from momentgen.laws.rules.matrices import along, matrix_along
from momentgen.laws.table import Entry, names
from momentgen.laws.unsupported import unsupported

__all__ = []

# ------------------------------------------------------------ transforms


_ONE = names("fft ifft rfft irfft hfft ihfft")
_TWO = tuple(f"{name}2" for name in _ONE)
_MANY = tuple(f"{name}n" for name in _ONE)


@rule(Diagonal, *_ONE, *_TWO, *_MANY)
@rule(Covariance, *_ONE, *_TWO, *_MANY)
@rule(Complex, *_ONE, *_TWO, *_MANY)
def _fourier(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x: Any = args[0]
    bound = {**dict(zip(("s", "dim", "norm"), args[1:], strict=False)), **kwargs}
    size, norm, dim = bound.get("n", bound.get("s")), bound.get("norm"), bound.get("dim")
    if entry.name in _ONE:
        dims: tuple[int, ...] = (-1 if dim is None else dim,)
    elif dim is not None:
        dims = (dim,) if isinstance(dim, int) else tuple(dim)
    else:
        dims = (-2, -1) if entry.name in _TWO else tuple(range(-(x.ndim if size is None else len(size)), 0))
    places: Any = 1 if entry.name in _ONE else tuple(range(1, len(dims) + 1))
    total: list[Any] = [None, None]
    for part, unit in ((x.real, 1), (x.imag, 1j)) if isinstance(x, Complex) else ((x, 1),):

        def transform(eye: Tensor, unit: complex = unit) -> Tensor:
            return cast(Tensor, entry.call(eye if unit == 1 else eye * unit, size, places, norm))

        matrix = matrix_along(entry, part, dims, transform)
        for k, coefficients in enumerate((matrix.real, matrix.imag) if matrix.is_complex() else (matrix,)):
            found = along(part, dims, coefficients)
            total[k] = found if total[k] is None else total[k] + found
    return total[0] if total[1] is None else complex_of(*total)


@rule(Diagonal, "complex", "view_as_complex")
@rule(Covariance, "complex", "view_as_complex")
def _of_parts(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.complex`` and ``view_as_complex`` of real values."""
    if entry.name == "complex":
        real, imag = (*args, kwargs.get("imag"))[:2]
        shape = torch.broadcast_shapes(real.shape, imag.shape)
        return complex_of(real.expand(shape), imag.expand(shape))
    return complex_of(args[0].select(-1, 0), args[0].select(-1, 1))


@rule(Diagonal, "conj", "conj_physical", "resolve_conj", "resolve_neg")
@rule(Covariance, "conj", "conj_physical", "resolve_conj", "resolve_neg")
@rule(Complex, "resolve_conj", "resolve_neg")
def _of_real(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Functions that leave real values as they are."""
    return args[0]


# ----------------------------------------------------- of complex values


@rule(Complex, "*", "adjoint", "mH", "H", "to", "type", "float", "double")
def _refused(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    law = next(value for value in (*args, *kwargs.values()) if isinstance(value, Complex))
    raise unsupported(entry.call, law, COMPLEX, entry)


@rule(Complex, "movement", "sum", "mean", "cumsum")
def _on_each(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Functions that are linear with real coefficients: the same on both parts."""
    parts = [
        entry.call(*[_part(value, k) for value in args], **{name: _part(value, k) for name, value in kwargs.items()})
        for k in (0, 1)
    ]
    if isinstance(parts[0], tuple | list):
        return tuple(complex_of(*both) for both in zip(*parts, strict=True))
    return complex_of(*parts)


def _part(value: Any, k: int) -> Any:
    """The real or the imaginary part of an argument; of lists, of each item."""
    if isinstance(value, Complex):
        return value._joint[k]
    if type(value) in (tuple, list) and any(isinstance(item, Complex) for item in value):
        return type(value)([_as_complex(item)[k] for item in value])
    return value


def _as_complex(value: Any) -> tuple[Any, Any]:
    """Both parts of a value; the imaginary one of a real value is 0."""
    if isinstance(value, Complex):
        return value.real, value.imag
    if isinstance(value, Tensor) and value.is_complex():
        return value.real, value.imag
    if isinstance(value, complex):
        return value.real, value.imag
    return value, torch.zeros_like(tensor_of(value)) if isinstance(value, Law | Tensor) else 0.0


def _is_complex(value: Any) -> bool:
    return isinstance(value, Complex | complex) or (isinstance(value, Tensor) and value.is_complex())


@rule(Complex, "add", "sub", "rsub")
def _sum(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    both = [_as_complex(value) for value in args]
    return complex_of(*(entry.call(*[value[k] for value in both], **kwargs) for k in (0, 1)))


@rule(Complex, "mul", "product")
def _product(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Functions linear in each factor, written out over the parts of all that are complex."""
    places = [place for place, value in enumerate(args) if _is_complex(value)]
    if kwargs or any(type(value) in (tuple, list) for value in args):
        raise unsupported(
            entry.call, next(v for v in args if isinstance(v, Law)), "factors stand in turn, unnamed", entry
        )
    call = torch.matmul if entry.name == "rmatmul" else entry.call
    ordered = (args[1], args[0]) if entry.name == "rmatmul" else args
    places = [1 - place for place in places] if entry.name == "rmatmul" else places
    total: list[Any] = [None, None]
    for choice in itertools.product((0, 1), repeat=len(places)):
        own = list(ordered)
        for place, k in zip(places, choice, strict=True):
            own[place] = _as_complex(ordered[place])[k]
        found = call(*own)
        power = sum(choice)
        found = -found if power % 4 in (2, 3) else found
        k = power % 2
        total[k] = found if total[k] is None else total[k] + found
    return complex_of(*total)


@rule(Complex, "div", "rdiv")
def _quotient(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, y = args
    if entry.name == "rdiv" or not isinstance(x, Complex) or isinstance(y, Law) or kwargs:
        law = x if isinstance(x, Complex) else y
        raise unsupported(entry.call, law, "a quotient by a certain value has a rule", entry)
    return x * (1 / y)


@rule(Complex, "neg")
def _negative(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return complex_of(-args[0].real, -args[0].imag)


@rule(Complex, "conj", "conj_physical")
def _conjugate(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return complex_of(args[0].real, -args[0].imag)


rule(Complex, "real")(lambda entry, args, kwargs: args[0].real)
rule(Complex, "imag")(lambda entry, args, kwargs: args[0].imag)
rule(Complex, "view_as_real")(lambda entry, args, kwargs: torch.stack([args[0].real, args[0].imag], -1))

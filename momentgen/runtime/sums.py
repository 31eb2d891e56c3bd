"""Sums of noisy values: what they share is remembered, so that a network that is given several meets it once.

A value is an offset plus terms, each a multiple of a source of noise.  Moments that are no sum are their own source.
Linear arithmetic with numbers and certain tensors is exact.  Two random values can be added where both are noise;
outputs of networks cannot, since they may depend on the same noise.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.runtime.moments import JointMoments, Moments, NoisyMoments

__all__ = ["SumMoments", "Term", "terms_of"]


class Term(NamedTuple):
    """A multiple of a source of noise, or of some of its values.

    Attributes:
        source: moments that are no sum.
        scale: a number, or a tensor that broadcasts with the source.
        start: of its values, in those of an example of the source, flattened; None for all of the source.
        shape: of an example of its values.
    """

    source: Moments
    scale: Tensor | float = 1.0
    start: int | None = None
    shape: tuple[int, ...] = ()

    def of(self, values: Any) -> Any:
        """The term, for values of its source; also for a law of them."""
        if self.start is not None:
            size = torch.Size(self.shape).numel()
            values = values[..., self.start : self.start + size].reshape((*values.shape[:-1], *self.shape))
        return values * self.scale

    def moved(self) -> Tensor:
        """What standard normal values, in front, do to the term; of a source with a covariance."""
        source: Any = self.source
        factor = source.factor.movedim(-2, 0)
        values = factor if self.start is not None else factor.reshape(len(factor), *source.mean.shape)
        found: Tensor = self.of(values)
        return found


class SumMoments(NoisyMoments):
    """A sum of noisy values and certain ones.

    Everything that takes :class:`Moments` takes it.  A converted network knows which noise its arguments share.  Other
    code sees mean and variance.

    >>> x = NoisyMoments(torch.zeros(2), torch.ones(2))
    >>> (2 * x + 1).var, (x - x).var
    (tensor([4., 4.]), tensor([0., 0.]))
    """

    offset: Tensor
    _terms: tuple[Term, ...]

    def __getattr__(self, name: str) -> Any:
        if name in ("offset", "_terms"):  # as in JointMoments
            raise InputError(
                "SumMoments: expected a sum of noisy values, got one made of mean and variance alone, as tree_map and "
                "_replace do. Add the values anew, or take momentgen.noisy(mean, var=var) for noise of its own"
            )
        return super().__getattr__(name)

    def _each(self, key: Any, change: Callable[[Tensor], Tensor]) -> Moments:
        terms = [
            term._replace(
                source=term.source._each(key, change),
                scale=change(term.scale) if isinstance(term.scale, Tensor) else term.scale,
            )
            for term in self._terms
        ]
        return SumMoments.of(change(self.offset), terms)

    @property
    def noise(self) -> Any:
        """The sources of its noise."""
        return tuple(term.source for term in self._terms)

    @classmethod
    def of(cls, offset: Tensor, terms: Iterable[Term]) -> Self:
        """The sum of a certain value and terms; those of one source are put together."""
        found: dict[Any, Term] = {}
        for term in terms:
            key = id(term.source), term.start, term.shape
            before = found.get(key)
            found[key] = term if before is None else term._replace(scale=before.scale + term.scale)
        kept = [term for term in found.values() if isinstance(term.scale, Tensor) or term.scale]
        if len(kept) < len(found):  # what cancels leaves its shape
            values = [term.of(term.source.mean) for term in found.values()]
            offset = offset + sum(torch.zeros_like(value) for value in values)
        mean = offset
        for term in kept:
            mean = mean + term.of(term.source.mean)
        made = cls(mean, _variance(kept, mean))
        made.offset, made._terms = offset, tuple(kept)
        return made


def _variance(terms: list[Term], mean: Tensor) -> Tensor:
    """The *variance* of a sum of terms, of the shape of the mean."""
    total = torch.zeros_like(mean)
    joint: dict[int, Tensor] = {}
    for term in terms:
        if isinstance(term.source, JointMoments):
            moved, before = term.moved(), joint.get(id(term.source))
            joint[id(term.source)] = moved if before is None else before + moved
        else:  # each source has one term, whose scale may have changed sign
            total = total + term.scale * (term.scale * term.source.var)
    for moved in joint.values():
        total = total + moved.square().sum(0)
    return total


def terms_of(value: Moments) -> tuple[Tensor | None, tuple[Term, ...]]:
    """The offset of a sum, None for nothing, and its terms; moments that are no sum are a term by themselves."""
    if isinstance(value, SumMoments):
        return value.offset, value._terms
    derived = value._derived if isinstance(value, JointMoments) else None
    return (None, (Term(value),)) if derived is None else derived


# ------------------------------------------------------------------- operators


def _certain(other: object) -> Any:
    """A number or tensor that a random value may be calculated with; None for anything else."""
    if not isinstance(other, bool | np.bool_) and isinstance(other, numbers.Real):
        return float(other)
    if isinstance(other, np.ndarray) and other.dtype.kind in "iuf":
        return torch.from_numpy(np.array(other))
    real = isinstance(other, Tensor) and not other.is_complex() and other.dtype is not torch.bool
    return other if real else None


def _linear(value: Moments, scale: Any, offset: Any) -> Moments:
    """``scale`` times a random value plus ``offset``, which are certain."""
    mean, var = tuple.__iter__(value)
    before, terms = terms_of(value)
    shift = (torch.zeros((), dtype=mean.dtype, device=mean.device) if before is None else before) * scale + offset
    terms = tuple(term._replace(scale=term.scale * scale) for term in terms)
    if not isinstance(value, JointMoments):
        return SumMoments.of(shift, terms)
    mean, size = mean * scale + offset, torch.as_tensor(scale, dtype=mean.dtype, device=mean.device)
    if mean.shape != value.mean.shape:
        raise InputError(
            f"Moments of shape {tuple(value.mean.shape)}: its values have a covariance, and cannot be broadcast to "
            f"{tuple(mean.shape)}; compute that in the network, or in momentgen.propagate"
        )
    factor = value.factor
    spread = size.expand(mean.shape).reshape(*factor.shape[:-2], 1, factor.shape[-1])
    made = JointMoments.of(mean, size * (size * var), factor * spread)
    if value._errors is not None:
        std_error, mean_error, rows = value._errors
        made = made.with_errors(size.abs() * std_error, size.abs() * mean_error, rows)
        made._notes = value._notes
    made._derived = shift, terms
    return made


def _is_noise(value: Moments) -> bool:
    return isinstance(value, NoisyMoments) or (isinstance(value, JointMoments) and value.rows is None)


def _added(one: Moments, other: Moments, sign: float) -> Moments:
    """The sum or difference of two sources of noise."""
    for value in (one, other):
        if not _is_noise(value):
            raise InputError(
                f"{'Moments + Moments' if sign > 0 else 'Moments - Moments'}: expected noise of momentgen.noisy, got "
                "moments, and nothing says what noise these share. Write "
                f"momentgen.propagate(lambda a, b: a {'+' if sign > 0 else '-'} b, x, y), and where both are results "
                "that share noise, make all three calls within momentgen.joint(). Where they share none, take "
                "momentgen.noisy(x.mean, var=x.var)"
            )
    (before, own), (after, others) = terms_of(one), terms_of(other)
    parts = [part for part in (before, None if after is None else sign * after) if part is not None]
    offset = sum(parts[1:], parts[0]) if parts else torch.zeros((), dtype=one.mean.dtype, device=one.mean.device)
    return SumMoments.of(offset, (*own, *(term._replace(scale=sign * term.scale) for term in others)))


_SHOWN: Final = {"+": 1.0, "-": -1.0}


def _operator(text: str, swapped: bool = False) -> Callable[[Moments, object], Moments]:
    def operate(self: Moments, other: object) -> Moments:
        if isinstance(other, Moments) and text in _SHOWN:
            return _added(self, other, _SHOWN[text])
        number = None if isinstance(other, Moments) else _certain(other)
        if number is not None and isinstance(tuple.__getitem__(self, 0), Tensor):
            if text in _SHOWN:
                sign = _SHOWN[text]
                return _linear(self, sign, number) if swapped else _linear(self, 1.0, sign * number)
            if text == "*":
                return _linear(self, number, 0.0)
            if text == "/" and not swapped:
                return _linear(self, 1 / number, 0.0)
        names = ["Moments", _named(other)]
        left, right = names[::-1] if swapped else names
        raise InputError(
            f"{left} {text} {right}: Moments know + and -, and products with certain values. Compute all else in one "
            f"function, momentgen.propagate(lambda a, b: a {text} b, x, y), or convert the network that contains it"
        )

    return operate


def _named(value: object) -> str:
    return "Moments" if isinstance(value, Moments) else type(value).__name__


def _comparison(text: str) -> Callable[[Moments, object], NoReturn]:
    def compare(self: Moments, other: object) -> NoReturn:
        raise InputError(
            f"Moments {text} {_named(other)}: a random value is above another with a probability. "
            f"That of one value is momentgen.propagate(lambda a: (a > c).double(), x).mean. "
            f"x.mean {text} c compares the means"
        )

    return compare


def _conversion(text: str) -> Callable[..., NoReturn]:
    def convert(self: Moments, *others: object) -> NoReturn:
        raise InputError(
            f"{text}(Moments): a random value is no number; read .mean or .std, or compute with it in one function of "
            "torch, momentgen.propagate(lambda a: torch.abs(a), x)"
        )

    return convert


_OPERATORS: Final = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "@": "matmul", "//": "floordiv", "%": "mod", "**": "pow",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
_UFUNCS: Final = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
#: what torch calls the operators of tensors, without underscores
_REFLECTED: Final = frozenset(
    ("div", "true_divide", "floor_divide", "remainder", "lt", "le", "gt", "ge", "eq", "ne", *_OPERATORS.values())
)
_COMPARISONS: Final = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_CONVERSIONS: Final = {
    "abs": "abs", "~": "invert", "float": "float", "int": "int", "bool": "bool", "complex": "complex",
    "round": "round", "divmod": "divmod", "operator.index": "index", "numpy.asarray": "array",
}  # fmt: skip


def _of_torch(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """A plain function of torch that is handed moments."""
    name = torch.overrides.resolve_name(func) or func.__name__
    own = name.startswith("torch.Tensor.") and func.__name__.removeprefix("__").removesuffix("__") in _REFLECTED
    if own and args and isinstance(args[0], Tensor):
        return NotImplemented  # an operator, of which moments have the reflected one
    instead = "convert the network, momentgen.convert(network)(x)"
    if not name.startswith("torch.nn."):
        instead = f"momentgen.propagate({name}, x) computes it for a random value"
    raise InputError(f"{name} takes tensors, got Moments; {instead}")


def _of_numpy(self: Moments, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """A function of NumPy that is handed moments: linear arithmetic with an array, or refused."""
    text = _UFUNCS.get(ufunc.__name__)
    if text is not None and method == "__call__" and len(inputs) == 2 and not kwargs:
        left, right = inputs
        return _operator(text)(left, right) if isinstance(left, Moments) else _operator(text, True)(right, left)
    raise InputError(
        f"numpy.{ufunc.__name__} takes arrays, got Moments; write the function with torch, "
        f"momentgen.propagate(torch.{ufunc.__name__}, x)"
    )


for _sign, _name in _OPERATORS.items():
    setattr(Moments, f"__{_name}__", _operator(_sign))
    setattr(Moments, f"__r{_name}__", _operator(_sign, swapped=True))
for _sign, _name in _COMPARISONS.items():
    setattr(Moments, f"__{_name}__", _comparison(_sign))
for _sign, _name in _CONVERSIONS.items():
    setattr(Moments, f"__{_name}__", _conversion(_sign))
for _name, _method in {
    "__neg__": lambda self: _linear(self, -1.0, 0.0),
    "__pos__": lambda self: self,
    "__array_ufunc__": _of_numpy,
    "__torch_function__": classmethod(_of_torch),
}.items():
    setattr(Moments, _name, _method)
torch.serialization.add_safe_globals([SumMoments, Term])

"""A law: what is known of a random value, as an object that torch's functions take for a tensor.

torch calls ``__torch_function__`` of every argument that has one.  So a plain network runs on a law as it is, without
tracing and without layers of its own.  All laws share this module: shape and dtype, what a value remembers, and writing
in place.

- One module per law has what is known of a value (:mod:`~momentgen.laws.diagonal`, ...).
- :mod:`~momentgen.laws.rules` has the rules.
- :mod:`~momentgen.laws.dispatch` leads torch's functions to them.

A law is immutable except for functions that write in place.  Those bind its fields anew, so that other names of the
object see the write.  A view remembers the law that it was taken from.  It is taken again after a write to that law,
and writes through to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from momentgen.errors import InputError, UnsupportedError
from momentgen.laws.notes import COMPLEX_INSTEAD, place, unsupported
from momentgen.laws.table import Entry

#: mean and variance of a function of one value, from those of the value
MomentsOf = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

#: computes a function on a law: the function's entry, its positional and its keyword arguments.
Rule = Callable[[Entry, tuple[Any, ...], dict[str, Any]], Any]


class Later(NamedTuple):
    """Moments that are computed when they are needed: a tensor of their form, and what computes mean and variance."""

    form: Tensor
    moments: Callable[[], tuple[Tensor, Tensor]]


class History(NamedTuple):
    """What a law remembers of how it was made.

    Attributes:
        call: entry, arguments and keyword arguments of the function of which it is the result.
        of: the law that it is a function of.
        depth: how many functions lie between it and the last value without a source.
        seen: the laws and tensors among the arguments, and how often each had been written to.
        later: the law's moments, where they are put off.
    """

    call: tuple[Entry, tuple[Any, ...], dict[str, Any]]
    of: Law
    depth: int
    seen: tuple[tuple[Law | Tensor, int], ...]
    later: Later | None = None

    def known(self) -> tuple[Entry, tuple[Any, ...], dict[str, Any]] | None:
        """The call, while no argument has been written to."""
        for value, version in self.seen:
            if isinstance(value, Law) and value._view is not None:
                value._refresh()
            if value._version != version:
                return None
        return self.call


def _of_form(name: str) -> Any:
    """A property of a law: that of the tensor of its form."""
    return property(lambda self: getattr(self._form(), name))


class Law:
    """What is known of a random value; stands where a network expects a tensor.

    Attributes:
        RANK: of the laws that meet in one function, the one of highest rank has the rule.
        RULES: name or kind of a function -> the rule; ``*`` is any other.
        FIXED: why a tensor of this law cannot be written to, and why no other can become one; None where both can.
    """

    # One layout for all laws: a law that is written to may become another.
    __slots__ = (
        "__weakref__", "_history", "_mean", "_noise", "_programs", "_var", "_version", "_view",
    )  # fmt: skip

    RANK: ClassVar[int] = 0
    RULES: ClassVar[dict[str, Rule]] = {}
    FIXED: ClassVar[tuple[str, str] | None] = None

    def __init_subclass__(cls) -> None:
        cls.RULES = {}

    #: mean or value; None while moments are not computed yet
    _mean: Any
    _var: Any
    #: how it was made, where that is worth remembering
    _history: History | None
    #: what :mod:`~momentgen.laws.programs` has found of it
    _programs: Any
    #: (base, entry, args, kwargs, place among the results, the base's version) of a view
    _view: tuple[Law, Entry, tuple[Any, ...], dict[str, Any], int | None, int] | None
    #: how often it has been written to
    _version: int
    #: what noise of the network's own makes of it: a class of laws, or None to take noise at its mean
    _noise: type[Law] | None

    def __getattr__(self, name: str) -> Any:
        # Methods of a tensor are given to the class below; what comes here is neither.
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ----------------------------------------------------------------- form

    def _form(self) -> Tensor:
        """A tensor of the law's shape, dtype and device."""
        if self._view is not None:
            self._refresh()
        return self._mean

    @property
    def shape(self) -> torch.Size:
        return self._form().shape

    dtype, device, ndim, layout = _of_form("dtype"), _of_form("device"), _of_form("ndim"), _of_form("layout")
    is_cuda, is_cpu, is_meta = _of_form("is_cuda"), _of_form("is_cpu"), _of_form("is_meta")
    is_mps, is_xpu, itemsize = _of_form("is_mps"), _of_form("is_xpu"), _of_form("itemsize")
    is_leaf = is_sparse = is_nested = is_quantized = is_mkldnn = False

    @property
    def requires_grad(self) -> bool:
        return any(part.requires_grad for part in self._parts())

    T: Any = property(lambda self: self.permute(list(range(self.ndim - 1, -1, -1))))
    mT: Any = property(lambda self: self.transpose(-2, -1))  # noqa: N815 - torch's name
    mH = mT  # noqa: N815
    H: Any = property(lambda self: self.t() if self.ndim else self)
    data: Any = property(lambda self: self.detach())
    real: Any = property(lambda self: torch.real(self) if self.dtype.is_complex else self)
    imag: Any = property(lambda self: torch.imag(self))

    # Asked for at every layer: without dispatch.
    def dim(self) -> int:
        return self._form().dim()

    def size(self, dim: int | None = None) -> Any:
        return self._form().size() if dim is None else self._form().size(dim)

    def numel(self) -> int:
        return self._form().numel()

    def is_floating_point(self) -> bool:
        return self._form().is_floating_point()

    def __len__(self) -> int:
        return len(self._form())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:
        return new_law, (type(self), *self._parts()), (None, {"_noise": self._noise})

    def __format__(self, spec: str) -> str:
        if spec:
            raise unsupported(Tensor.__format__, self, "a random value is not a number to be written")
        return repr(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)}, dtype={self.dtype})"

    # -------------------------------------------------------------- history

    @property
    def _depth(self) -> int:
        """How many functions lie between this and the last value without a source."""
        return 0 if self._history is None else self._history.depth

    @property
    def _made(self) -> tuple[Entry, tuple[Any, ...], dict[str, Any]] | None:
        """The call of which this is the result, while no argument has been written to."""
        return None if self._history is None else self._history.known()

    # ---------------------------------------------------------------- parts

    def _parts(self) -> tuple[Tensor, ...]:
        """The tensors that the law consists of, each of the law's shape."""
        if self._view is not None:
            self._refresh()
        return (self._mean,) if self._var is None else (self._mean, self._var)

    def _like(self, *parts: Tensor) -> Law:
        """A law of the same class from its parts."""
        made = new_law(type(self), *parts)
        made._noise = self._noise
        return made

    # ------------------------------------------------------ writing in place

    def _assign(self, new: Law) -> None:
        """Become ``new``; a view writes through to its base."""
        for side, law in enumerate((self, new)):
            if law.FIXED is not None:
                raise unsupported(Tensor.copy_, law, law.FIXED[side])
        new_parts = new._parts()
        shape, dtype = self._form().shape, self._form().dtype
        if new_parts[0].shape != shape:
            new_parts = tuple(part.expand(shape) for part in new_parts)  # raises as torch does if it would grow
        if self._view is not None:
            base, entry, args, kwargs, place, _ = self._view
            if len(new_parts) > len(base._parts()):
                _become(base, type(new), (*base._parts(), torch.zeros_like(base._mean)))
            written = []
            for part, value in zip_longest(base._parts(), new_parts, fillvalue=torch.zeros(())):
                whole = part.clone(memory_format=torch.contiguous_format)
                view = whole if entry.name == "detach" else _view_of(whole, entry, args, kwargs, place)
                view.copy_(value)
                written.append(whole)
            base._assign(base._like(*written))
            self._view = (base, entry, args, kwargs, place, base._version)
        _become(self, type(new), tuple(part.to(dtype) for part in new_parts))
        self._history = None
        self._version += 1

    def _overwrite(self, new: Law) -> None:
        """Become ``new``, a function of what this has been, and remember that."""
        if new is self or new._made is None or torch.compiler.is_compiling():
            return self._assign(new)
        old = self._like(*self._parts())
        old._history, old._programs = self._history, self._programs
        (entry, args, kwargs), of, depth = cast(History, new._history)[:3]
        self._assign(new)
        args = tuple([old if value is self else value for value in args])
        self._history = History((entry, args, kwargs), old if of is self else of, depth, versions(args))
        return None

    def _reshape(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], new: Law) -> None:
        """Become a view of what this has been, as ``unsqueeze_`` makes it."""
        old = self._like(*self._parts())
        old._view, old._version = self._view, self._version
        _become(self, type(self), new._parts())
        self._view = (old, entry, args, kwargs, None, old._version)
        self._history = None

    def _refresh(self) -> None:
        """Take a view again, if what it was taken from has been written to."""
        if self._view is None:
            return
        base, entry, args, kwargs, place, version = self._view
        if base._view is not None:
            base._refresh()
        if base._version == version:
            return
        parts = []
        for part in base._parts():
            view = entry.call(part, *args, **kwargs)
            parts.append(view if place is None else view[place])
        if self._mean is not None and parts[0].shape != self._mean.shape:
            raise InputError(f"{entry.name}: a view was taken of a value whose shape has been changed in place since")
        _become(self, type(base), tuple(parts))
        self._history = None
        self._version += 1
        self._view = (base, entry, args, kwargs, place, base._version)


def _view_of(whole: Tensor, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], place: int | None) -> Tensor:
    """A view of a contiguous tensor that may be written to, one of several where ``place`` says which."""
    if place is None:
        return entry.call(whole, *args, **kwargs)
    # Autograd forbids writing to one of several views that one call returned: make the same view alone.
    part = entry.call(torch.empty(whole.shape, device="meta"), *args, **kwargs)[place]
    return whole.as_strided(part.shape, part.stride(), part.storage_offset())


def rule(*given: type[Law] | str) -> Callable[[Rule], Rule]:
    """Decorates the rule of laws for functions.

    Args:
        given: classes of laws, and names of functions, or kinds of :data:`momentgen.laws.table.KINDS`; ``*`` is for all
            without a rule of their own.

    Raises:
        ValueError: if there is a rule already.
    """

    def register(function: Rule) -> Rule:
        for law in (one for one in given if not isinstance(one, str)):
            for name in (one for one in given if isinstance(one, str)):
                if name in law.RULES:
                    raise ValueError(f"{law.__name__} has two rules for {name}")
                law.RULES[name] = function
        return function

    return register


def rule_of(law: type[Law], name: str, kind: str) -> Rule | None:
    """The rule of a law for a function: by its name, else by its kind; None if there is none."""
    rules = law.RULES
    return rules.get(name) or rules.get(kind) or rules.get("*")


def new_law(kind: type[Law], mean: Tensor, var: Tensor | None = None) -> Any:
    """A law without a history."""
    if var is not None and mean.dtype.is_complex:
        raise UnsupportedError(
            f"a random value meets a complex number{place()}: the deterministic methods have no rule for complex "
            f"random values; {COMPLEX_INSTEAD}"
        )
    law = kind.__new__(kind)
    law._mean, law._var = mean, var
    law._history = law._programs = law._view = law._noise = None
    law._version = 0
    return law


#: beyond so many functions of one value what it is a function of is forgotten, and its memory freed
DEPTH = 12


def remember(law: Any, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any], of: Law) -> Any:
    """Let ``law`` know of which call it is the result, and of which law a function."""
    depth = of._depth
    if depth < DEPTH:
        seen = ((of, of._version),) if len(args) == 1 and args[0] is of else versions(args)
        law._history = History((entry, args, kwargs), of, depth + 1, seen)
    return law


def versions(args: tuple[Any, ...]) -> tuple[tuple[Law | Tensor, int], ...]:
    """The laws and tensors among arguments, and how often each has been written to."""
    found: list[tuple[Law | Tensor, int]] = [(value, value._version) for value in laws_in(args)]
    if not torch.compiler.is_compiling():
        found += [(value, value._version) for value in args if isinstance(value, Tensor) and not value.is_inference()]
    return tuple(found)


def _become(law: Law, kind: type[Law], parts: tuple[Tensor, ...]) -> None:
    if type(law) is not kind:
        law.__class__ = kind
    law._mean = parts[0]
    law._var = parts[1] if len(parts) > 1 else None
    law._programs = None


# ----------------------------------------------------------------- arguments


def laws_in(args: Any) -> list[Law]:
    """The laws among arguments, one level of tuples and lists deep."""
    found = []
    for value in args:
        if isinstance(value, Law):
            found.append(value)
        elif type(value) in (tuple, list):
            found.extend([item for item in value if isinstance(item, Law)])
    return found

"""Draws that meet no law: what a network draws of a certain tensor, or of nothing, while it runs on laws.

torch asks a law of functions that it is an argument of.  Of ``dropout(weight)`` or ``torch.randn(3)`` it is not, and
their numbers would count as certain.  Within :class:`Draws`, a mode of torch functions, a draw whose moments are known
is a law, and any other is refused.  What initialises parameters, such as those of lazy modules, is drawn as it is.

``torch.tensor`` and its like ask no law either; within the mode they hand it back.

:class:`Reads` is a mode too, for random parameters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions.utils import _standard_normal
from torch.overrides import TorchFunctionMode

from momentgen.errors import InputError, UnsupportedError
from momentgen.laws.diagonal import diagonal, point
from momentgen.laws.dispatch import call, dispatch
from momentgen.laws.law import Law, laws_in
from momentgen.laws.notes import place, unsupported
from momentgen.laws.rules import noise as moments_of_noise
from momentgen.laws.table import METHODS, TABLE, list_for_compile

#: properties of a tensor that have its values; the others are its form
_VALUES: Final = frozenset(("data", "T", "mT", "H", "mH", "real", "imag"))


class Reads(TorchFunctionMode):
    """Within the mode, functions that meet a plain parameter raise.

    A random parameter takes the place of the plain one in the modules of a twin (:mod:`momentgen.laws.twins`), and in
    what their attributes hold.  A global variable or another object may still lead to the plain network.  What reads a
    plain parameter there would take it for certain.

    Args:
        plain: names of the plain parameters that are random, by the id of the tensor.

    Raises:
        InputError: from the network, where it computes with one of them.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> with Reads({id(weight): "weight"}):
    ...     weight.shape, 2 * weight
    Traceback (most recent call last):
    ...
    momentgen.errors.InputError: ...
    """

    def __init__(self, plain: Mapping[int, str]) -> None:
        super().__init__()
        self._plain = plain

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.check(func, args, kwargs)
        return func(*args) if kwargs is None else func(*args, **kwargs)

    def check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """Raise if the function has a plain parameter among its arguments, or in lists among them."""
        plain = self._plain
        # Written out: this is the way of every function.
        for value in (*args, *kwargs.values()) if kwargs else args:
            if id(value) in plain:
                self._refuse(func, plain[id(value)])
            elif type(value) in (tuple, list):
                for item in value:
                    if id(item) in plain:
                        self._refuse(func, plain[id(item)])

    def _refuse(self, func: Any, name: str) -> None:
        entry = METHODS.get(func) if isinstance(func, str) else TABLE.get(func)
        asks_form = entry is not None and entry.kind == "query"
        if getattr(func, "__name__", "") == "__get__":
            asks_form = getattr(getattr(func, "__self__", None), "__name__", "") not in _VALUES
        if not asks_form:
            raise InputError(
                f"{getattr(func, '__name__', func)}{place()}: expected the random value of the parameter {name!r}, got "
                "that of the plain network, which a global variable or an object holds. Hold the part that reads it "
                f"as an attribute of the network, or leave {name!r} out by randomise(..., only=...)"
            )


#: what noise makes of a certain value: ``Diagonal``, or None to take noise at its mean
Noise = type[Law] | None

#: the state of torch's generator when a network began to run
STARTED: Final[ContextVar[Tensor | None]] = ContextVar("momentgen_started", default=None)

_INSTEAD: Final = 'use method="sample" or momentgen.monte_carlo, which draw it as torch does'


class Draws(TorchFunctionMode):
    """Within the mode draws of certain tensors are laws, or refused.

    Args:
        noise: the class of laws that draws are; None for their means.

    Raises:
        UnsupportedError: from the network, for draws whose moments are not known, that write into a tensor, or that
            have a generator of their own.  Also for all that come after the network has seeded torch's generator.

    >>> from momentgen.laws.diagonal import Diagonal
    >>> with Draws(Diagonal):
    ...     torch.nn.functional.dropout(torch.ones(2), 0.5).moments().var
    tensor([1., 1.])
    """

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        self._noise = noise

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Written out: this is the way of every function, most of them of laws.
        if types and _are_laws(types):
            entry = TABLE.get(func)
            if entry is None:
                return call(func, args, kwargs)
            if entry.kind == "noise" and moments_of_noise.active(entry, args, kwargs or {}):
                _check_seed(entry.name)
            return dispatch(entry, func, args, {} if kwargs is None else kwargs)
        rule = _RULES.get(func)
        if rule is None:
            return func(*args) if kwargs is None else func(*args, **kwargs)
        return rule(self._noise, func, args, {} if kwargs is None else kwargs)


class TracedDraws(Draws):
    """:class:`Draws` for code that ``torch.compile`` traces, which looks for laws in lists only, and not in tuples."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in _CONVERSIONS:  # for which the compiler asks laws
            return _converted(self._noise, func, args, named)
        listed = tuple([list(value) if type(value) is tuple and laws_in(value) else value for value in args])
        if _are_laws(types):
            return call(func, listed, named)
        rule = _RULES.get(func)
        return func(*listed, **named) if rule is None else rule(self._noise, func, listed, named)


def _are_laws(types: Any) -> bool:
    """Whether a function has laws among its arguments, and no other class that asks for it."""
    if len(types) == 1:
        return issubclass(types[0], Law)
    others = [kind for kind in types if not issubclass(kind, Law)]
    return len(others) < len(types) and not [kind for kind in others if kind not in (Tensor, torch.nn.Parameter)]


#: what a function does within the mode
Rule = Callable[[Noise, Any, tuple[Any, ...], dict[str, Any]], Any]


def _refusal(name: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"{name} draws numbers that no law meets{place()}: {why}, or {_INSTEAD}")


def _initialises() -> bool:
    """Whether what runs initialises parameters, which is no noise of the network."""
    if torch.compiler.is_compiling():
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.nn.init" or frame.f_code.co_name in _INITIALISING:
            return True
        frame = frame.f_back
    return False


_INITIALISING = ("reset_parameters", "initialize_parameters")


def _check_seed(name: str) -> None:
    """Raise for a draw of a network that has seeded torch's generator: its numbers are the same at every call."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():  # fake tensors have no values
        return
    start = STARTED.get()
    if start is None or torch.equal(now := torch.get_rng_state(), start):
        return
    before, seed = torch.Generator(), torch.initial_seed()
    before.set_state(start)
    if before.initial_seed() != seed or torch.equal(now, torch.Generator().manual_seed(seed).get_state()):
        raise _refusal(name, "the network seeds torch's generator, so that they are the same at every call; draw once")


def _check(name: str, kwargs: dict[str, Any]) -> None:
    """Raise for a draw with a generator of its own, or into a tensor that is given."""
    if kwargs.get("generator") is not None:
        raise _refusal(name, _GENERATOR)
    _check_seed(name)
    if kwargs.get("out") is not None:
        raise _refusal(name, "`out=` cannot be written to; use the result")


_IN_PLACE = "a tensor cannot be overwritten by them; draw out of place, as torch.randn_like does"
_GENERATOR = "whether a generator of its own gives other numbers at every call cannot be told; leave it out"


# --------------------------------------------------- draws whose moments are known


def _of_certain(noise: Noise, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of the table that draws, of tensors."""
    entry = TABLE[func]
    if laws_in((*args, *kwargs.values())) or not moments_of_noise.active(entry, args, kwargs) or _initialises():
        return func(*args, **kwargs)
    _check(entry.name, kwargs)
    # What is written into may be new and handed back at once, as the normal numbers of distributions are.
    is_returned = not torch.compiler.is_compiling() and sys._getframe(2).f_code is _FRESH
    if not entry.writes(args, kwargs) or is_returned:
        return _value(noise, dispatch(entry, func, *_lifted(noise, args, kwargs)))
    if noise is not None:
        raise _refusal(entry.name, _IN_PLACE)
    target: Tensor = args[0] if args else kwargs["input"]
    found = dispatch(entry, func, *_lifted(noise, args, kwargs))
    return target.copy_(_value(noise, found))


#: makes a tensor, draws into it and hands it back
_FRESH: Final = _standard_normal.__code__


def _lifted(noise: Noise, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with a law in the place of the first tensor."""
    for index, value in enumerate(args):
        if isinstance(value, Tensor):
            return (*args[:index], point(value, noise), *args[index + 1 :]), kwargs
    name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
    return args, {**kwargs, name: point(kwargs[name], noise)}


def _value(noise: Noise, found: Any) -> Any:
    """What is drawn: a law, or a tensor of means."""
    if noise is None and isinstance(found, tuple):
        return tuple([_value(noise, item) for item in found])
    return found._form() if noise is None and isinstance(found, Law) else found


# ------------------------------------------------------------ draws of new tensors


def _of_nothing(noise: Noise, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that draws a new tensor, refused where its moments have no rule."""
    if laws_in((*args, *kwargs.values())) or _initialises():
        return func(*args, **kwargs)
    if func not in _MOMENTS:
        raise _refusal(func.__name__, "their moments have no rule; draw them outside of the network")
    _check(func.__name__, kwargs)
    named = {name: value for name, value in kwargs.items() if name not in ("generator", "out", "requires_grad")}
    mean, var = (part.detach() for part in _MOMENTS[func](*args, **named))
    return mean if noise is None else diagonal(mean, var)


def _normal(mean: Any = 0.0, std: Any = 1.0, size: Any = None, **named: Any) -> tuple[Tensor, Tensor]:
    if size is not None:
        return torch.full(size, float(mean), **named), torch.full(size, float(std) ** 2, **named)
    like = mean if isinstance(mean, Tensor) else std
    mean, std = torch.broadcast_tensors(*(torch.as_tensor(value).to(like) for value in (mean, std)))
    return mean, std.square()


#: mean and *variance*, from the arguments of each
_MOMENTS: Final[dict[Any, Callable[..., tuple[Tensor, Tensor]]]] = {
    torch.randn: lambda *args, **named: (torch.zeros(*args, **named), torch.ones(*args, **named)),
    torch.rand: lambda *args, **named: (torch.zeros(*args, **named) + 0.5, torch.zeros(*args, **named) + 1 / 12),
    torch.normal: _normal,
    torch.poisson: lambda input: (input, input),
}


# -------------------------------------------------------------------- conversions


def _converted(noise: Noise, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.tensor``, ``as_tensor`` and ``asarray``, of a law."""
    named = dict(kwargs)
    value = args[0] if args else named.pop("data", named.pop("obj", None))
    if not isinstance(value, Law):
        if isinstance(value, list | tuple) and (laws := _laws_within(value)):
            raise unsupported(func, laws[0], "it is one of a list, which torch.stack makes one value of")
        return func(*args, **kwargs)
    bound = {**dict(zip(("dtype", "device"), args[1:], strict=False)), **named}
    wanted = {name: bound[name] for name in ("dtype", "device") if bound.get(name) is not None}
    found: Any = value.to(**wanted) if wanted else value
    return found.detach().clone() if func is torch.tensor else found.clone() if bound.get("copy") else found


def _laws_within(nest: Any) -> list[Law]:
    if isinstance(nest, list | tuple):
        return [law for item in nest for law in _laws_within(item)]
    return [nest] if isinstance(nest, Law) else []


_CONVERSIONS = (torch.tensor, torch.as_tensor, torch.asarray)
#: functions that may draw within, by name in the table
_COMPOSITES = ("scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu")
#: names of functions whose numbers have no rule
_WITHOUT_RULE = (
    "randint", "randperm", "multinomial", "binomial", "exponential_", "geometric_", "cauchy_", "log_normal_", "random_",
    "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d", "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d_with_indices", "native_dropout", "_standard_gamma", "_sample_dirichlet", "_fused_dropout",
)  # fmt: skip


def _rules() -> dict[Any, Rule]:
    rules: dict[Any, Rule] = {
        func: _of_certain for func, entry in TABLE.items() if entry.kind == "noise" or entry.name in _COMPOSITES
    }
    for space in (torch, F, Tensor):
        rules.update({getattr(space, name): _of_nothing for name in _WITHOUT_RULE if hasattr(space, name)})
    return rules | dict.fromkeys(_MOMENTS, _of_nothing) | dict.fromkeys(_CONVERSIONS, _converted)


TABLE.setdefault(moments_of_noise.UNIT.call, moments_of_noise.UNIT)
_RULES = _rules()
list_for_compile(_RULES)

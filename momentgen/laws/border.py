"""The border between tensors and laws: methods, how inputs are lifted, and what runs in between.

A network is called with tensors or :class:`~momentgen.Moments` and returns moments.  In between it runs on laws.  The
method in force, :class:`method`, picks the laws once, as inputs enter.  Code inside does not depend on the method.

Where no method is given, a single layer or function uses ``ap2``, which is exact for it or the standard.  A network
uses ``ap2`` in training and ``controlled`` in evaluation, which is right for any network and states its own error
(:mod:`momentgen.laws.controlled`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from momentgen.errors import InputError, MomentgenError, UnsupportedError
from momentgen.extras import SITE
from momentgen.laws.debug import refuse as refuse_out_of_range
from momentgen.laws.dispatch import RECORDING, explained
from momentgen.laws.draws import STARTED, Draws, TracedDraws
from momentgen.laws.law import Law, laws_in
from momentgen.laws.methods import ALL, DEFAULT, TRACING, Accuracy, Method, by_flag, chosen, current_method, known
from momentgen.laws.nests import hidden, mapped
from momentgen.laws.twins import OUTSIDE, check_flags
from momentgen.laws.values import check, described, lower, remembered, with_sources
from momentgen.laws.weights import RUN
from momentgen.runtime import Moments
from momentgen.runtime.dynamo import graph_break, keep_order_of_products
from momentgen.runtime.inputs import has_elements, kind

#: methods that run a network several times, in eager mode: of the network (for errors), its code, and its arguments
PROPAGATIONS: dict[str, Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]] = {}

_NOT_COMPILED: Final = (
    "momentgen's method controlled, the default of networks in evaluation, runs a network several times, and cannot be "
    'compiled in full or exported; method="ap2" can, with all values of a layer taken as independent '
    f"({SITE}/networks/ says what that loses)"
)

_inside: ContextVar[bool] = ContextVar("momentgen_inside")


def inside() -> bool:
    """Whether a network is running on laws: what is called then is a part of it."""
    if torch.compiler.is_dynamo_compiling():
        return TRACING.depth > 0
    return _inside.get(False)


def run(where: Any, forward: Callable[..., Any], own: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``forward`` on laws of the arguments, and hand back moments.

    Args:
        where: the network or function, for errors.
        forward: what runs on laws.
        own: the method where no context says otherwise; ``default`` for a network's default.
        args: tensors, moments, and whatever else, in any containers (:mod:`~momentgen.laws.nests`).
        kwargs: likewise.
    """
    if torch.compiler.is_compiling():
        return _run(where, forward, own, args, kwargs)
    for value in hidden((*args, *kwargs.values())):
        raise InputError(
            f"{described(where)}: expected moments as arguments or in containers, got some that a "
            f"{type(value).__name__} holds, where they would count as nothing: {value!r:.80}. Pass them as arguments "
            "of their own"
        )
    if OUTSIDE in getattr(where, "__dict__", ()):
        check_flags(where)
    with _eagerly():
        return _run(where, forward, own, args, kwargs)


def _run(where: Any, forward: Callable[..., Any], own: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = current_method(own)
    if name == DEFAULT:
        name = chosen(where, args, kwargs)
    remember = remembered(name, forward, args, kwargs)
    forward, args, kwargs = with_sources(name, forward, args, kwargs)
    if name in PROPAGATIONS:
        return remember(_propagated(name, where, forward, args, kwargs))
    out = _on_laws(where, forward, name, args, kwargs)
    if name != "ap2" or getattr(where, "DEFAULT", None) != DEFAULT:
        return lower(out)
    if not torch.compiler.is_compiling():
        refuse_out_of_range(where, out, (args, kwargs), functools.partial(_on_laws, where, forward, name, args, kwargs))
    return lower(out, wide=True)


@graph_break(_NOT_COMPILED)
def _propagated(
    name: str, where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Moments of what ``forward`` returns, by one of :data:`PROPAGATIONS`; a graph break where code is compiled."""
    if torch.compiler.is_exporting():
        name = type(where).__name__ if isinstance(where, torch.nn.Module) else str(where)
        raise UnsupportedError(f"torch.export of {name}: {_NOT_COMPILED}")

    # Wrapped here, since torch.compiler.disable imports torch._dynamo.
    run = torch.compiler.disable(PROPAGATIONS[name])
    if not torch.is_inference_mode_enabled():
        return run(where, forward, args, kwargs)
    with torch.inference_mode(False), torch.no_grad():  # it differentiates, which inference mode rules out
        return run(where, forward, args, kwargs)


def _on_laws(where: Any, forward: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``forward`` makes of laws of the arguments by the method ``name``."""
    training = bool(getattr(where, "training", False))
    used = ALL[name]
    seen: list[tuple[Any, Any, Any]] = []

    def lift(value: Any) -> Any:
        """A law of one value among the arguments, or what stands for it by the method."""
        if isinstance(value, Moments):
            for mean, var, known in seen:
                if mean is value.mean and var is value.var:
                    return known  # one value given twice is one value
            check(where, value)
            law = used.lift(value)
            seen.append((value.mean, value.var, law))
            return law
        if isinstance(value, Tensor):
            if not has_elements(value):
                raise InputError(f"{described(where)}: expected a tensor of one shape, got {kind(value)}")
            # In training even indices are lifted: what they pick may meet dropout before it meets any law.
            if used.certain is not None and (value.is_floating_point() or (training and value.dtype is not torch.bool)):
                return used.certain(value)
        return value

    lifted, named = mapped(lift, args), mapped(lift, kwargs)
    if torch.compiler.is_dynamo_compiling():
        TRACING.depth += 1
        if used.is_drawn:
            out = forward(*lifted, **named)
        else:
            keep_order_of_products()
            with TracedDraws(used.noise):
                out = forward(*lifted, **named)
        TRACING.depth -= 1
        return out
    # A single layer or function draws nothing that a law does not meet.
    single = getattr(where, "DEFAULT", None) != DEFAULT
    with entered(None if single else used.draws):
        return forward(*lifted, **named)


#: einops finds backends among subclasses, which live only while somebody holds them; None while it does not know laws
_backend: type | None = None


def _tell_einops() -> None:
    """Tell einops, which is loaded, of laws: it asks a list of backends which one a value belongs to."""
    global _backend
    from einops._backends import TorchBackend  # type: ignore[import-not-found, unused-ignore]

    class LawBackend(TorchBackend):  # type: ignore[misc, unused-ignore]
        framework_name = "momentgen"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Law)

        def is_float_type(self, x: Any) -> bool:
            return bool(x.dtype.is_floating_point)

    _backend = LawBackend


_stance_lock = threading.Lock()
#: how many contexts are entered, in all threads
_eager_depth = 0
#: goes back to what was in force before the first of them
_stance_before: Any = None


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Within the context, what ``torch.compile`` has compiled runs as it was written, in all threads of the process.

    A network may call compiled functions.  ``torch.compile`` would trace the modes of torch functions in which a
    network runs, which takes minutes and may fail.

    Nothing is done where nothing can have been compiled, or where a compiler runs this very code.
    """
    global _eager_depth, _stance_before
    loaded = "torch._dynamo.eval_frame" in sys.modules
    if not loaded or torch._C._dynamo.eval_frame.get_eval_frame_callback() not in (None, False):
        yield
        return
    with _stance_lock:
        _eager_depth += 1
        if _eager_depth == 1:
            _stance_before = torch.compiler.set_stance("force_eager")
    try:
        yield
    finally:
        with _stance_lock:
            _eager_depth -= 1
            if _eager_depth == 0:
                _stance_before.__exit__(None, None, None)
                _stance_before = None


@contextlib.contextmanager
def entered(draws: Draws | None = None, beside: dict[ContextVar[Any], Any] | None = None) -> Iterator[None]:
    """Within the context a network runs on laws: what is called is a part of it.

    Args:
        draws: what becomes of draws that meet no law; None to leave them as they are.
        beside: further context variables, and their values.
    """
    if _backend is None and "einops" in sys.modules:
        _tell_einops()
    values: dict[ContextVar[Any], Any] = {_inside: True, RUN: {}, RECORDING: torch.is_grad_enabled()}
    values |= (beside or {}) | ({} if draws is None else {STARTED: torch.get_rng_state()})
    tokens = [(variable, variable.set(value)) for variable, value in values.items()]
    try:
        with draws or contextlib.nullcontext():
            yield
    except (RuntimeError, TypeError) as error:
        found = None if isinstance(error, MomentgenError) else explained(error)
        if found is None:
            raise
        raise found from error
    finally:
        for variable, token in tokens:
            variable.reset(token)


class Border:
    """Mixed in before a module's class: its ``forward`` takes tensors or moments and returns moments.

    Inside a network, where it is called with laws, it is the class behind it.

    Attributes:
        propagation: the method where no context sets one, None for the default; see :func:`set_method`.
        accuracy: what is asked of the method ``controlled`` where no context says it; see :func:`convert`.
        DEFAULT: the default, that of networks; single layers have ``ap2``.
    """

    propagation: str | None = None
    accuracy: Accuracy | None = None
    DEFAULT: ClassVar[str] = DEFAULT

    def _forward_inside(self, *args: Any, **kwargs: Any) -> Any:
        """What runs on laws: the forward of the class behind this one."""
        plain = self.__dict__.get("_plain_forward") or super().forward  # type: ignore[misc]
        return plain(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Moments of the output, by the method in force."""
        return self._cross_border(self._forward_inside, args, kwargs)

    def __repr__(self) -> str:
        found = super().__repr__()
        if self.DEFAULT != DEFAULT:
            return found
        mode = "training" if getattr(self, "training", False) else "evaluation"
        usual = f"{by_flag(mode == 'training')}, the default in {mode} mode"
        return f"{found}  # method: {self.propagation or usual}"

    def _cross_border(self, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``inner`` on laws and hand back moments; inside a network, on what comes."""
        if inside() or laws_in(args) or (kwargs and laws_in(kwargs.values())):
            return inner(*args, **kwargs)
        return run(self, inner, self.propagation or self.DEFAULT, args, kwargs)


def set_method(module: torch.nn.Module, name: Method | None) -> torch.nn.Module:
    """Set how ``module`` and every network in it propagate when no :class:`method` context says otherwise.

    Args:
        module: a network over moments, or any module that holds some.
        name: as for :class:`method`; ``None`` goes back to the default, see :func:`convert`.

    Returns:
        ``module``.

    Raises:
        InputError: for another name.
    """
    if name is not None:
        known(name)
    for part in module.modules():
        if isinstance(part, Border):
            part.propagation = name
    return module


@functools.cache
def behind_border(kind: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """A class of modules with the border before its forward."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._cross_border(self._forward_inside, args, kwargs)

    # torch.compile keeps eight versions of one piece of code: each class has its own.
    forward.__code__ = forward.__code__.replace(co_qualname=f"Moments{kind.__name__}.forward")
    with contextlib.suppress(TypeError, ValueError):  # torch.export goes by the names of the arguments
        forward.__signature__ = inspect.signature(kind.forward)  # type: ignore[attr-defined]
    body = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,  # transformers looks its models up by str(type(model))
        "__reduce_ex__": _reduce,
        "forward": forward,
    }
    if kind.__name__ == "OptimizedModule":  # of torch.compile, which would compile a copy anew
        body["_initialize"] = lambda self: None
    return type(f"Moments{kind.__name__}", (Border, kind), body)


def _reduce(self: Any, protocol: int) -> tuple[Any, ...]:
    own = getattr(type(self), "__getstate__", None)
    state = dict(self.__dict__) if own in (None, getattr(object, "__getstate__", None)) else self.__getstate__()
    return _rebuilt, (type(self).__mro__[2],), state


def _rebuilt(kind: type[torch.nn.Module]) -> Any:
    made = behind_border(kind)  # type: ignore[arg-type]
    return object.__new__(made)

"""The border between tensors and laws: methods, how inputs are lifted, and what runs in between.

A network is called with tensors or :class:`~momentgen.Moments` and returns moments.  In between it runs on laws.  The
method in force, :class:`method`, picks the laws once, as inputs enter.  Code inside does not depend on the method.

Where no method is given, a single layer or function uses ``ap2``, which is exact for it or the standard.  A network
uses ``ap2`` in training and ``controlled`` in evaluation, which is right for any network and states its own error
(:mod:`momentgen.laws.controlled`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar, Final, Literal, cast, get_args

import torch
from torch import Tensor

from momentgen.errors import InputError, MomentgenError, UnsupportedError
from momentgen.extras import SITE
from momentgen.laws import by_default, einops, lost, out_of_range
from momentgen.laws.accuracy import ACCURACY, Accuracy, asked
from momentgen.laws.context import seen_by_compiler, within
from momentgen.laws.draws import STARTED, Draws, TracedDraws
from momentgen.laws.eager import Eagerly
from momentgen.laws.law import laws_in
from momentgen.laws.methods import ALL, Propagation
from momentgen.laws.nests import hidden, mapped
from momentgen.laws.sources import remembered, with_sources
from momentgen.laws.twins import check_flags
from momentgen.laws.values import check, described, lower
from momentgen.laws.weights import RUN
from momentgen.runtime import Moments
from momentgen.runtime.dynamo import graph_break, keep_order_of_products
from momentgen.runtime.inputs import has_elements, kind

__all__ = [
    "METHODS",
    "Border",
    "Method",
    "current_method",
    "entered",
    "inside",
    "method",
    "run",
    "set_method",
]

Method = Literal["ap1", "ap2", "sample", "local", "controlled"]
#: what a user may ask for.
METHODS: Final[tuple[str, ...]] = get_args(Method)
#: of a network for which no method is said; users say None
DEFAULT: Final = "default"

#: methods that run a network several times, in eager mode: of the network (for errors), its code, and its arguments
PROPAGATIONS: dict[str, Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]] = {}

_NOT_COMPILED: Final = (
    "momentgen's method controlled, the default of networks in evaluation, runs a network several times, and cannot be "
    'compiled in full or exported; method="ap2" can, with all values of a layer taken as independent '
    f"({SITE}/networks/ says what that loses)"
)

_method: ContextVar[str] = ContextVar("momentgen_method")
_inside: ContextVar[bool] = ContextVar("momentgen_inside")


class _Tracing:
    """What is in force in code that ``torch.compile`` traces, which cannot set a context variable.

    Attributes:
        depth: how deep inside a network it is; always 0 outside.
        method: of a context that was entered in traced code; always None outside.
    """

    def __init__(self) -> None:
        # Of the object: torch.compile guards on whether they are there, and writes them.
        self.depth = 0
        self.method: str | None = None


_seen: Any = seen_by_compiler(_method)
_tracing = _Tracing()


class method:  # noqa: N801 - a context manager, named as it is used
    """How networks that are called within the context propagate.

    Args:
        name: ``ap1``: means only, the ordinary network bit for bit, the network's own noise by its mean.
            ``ap2``: means and variances, analytically, all values of a layer taken as independent.  ``sample``:
            everything random is drawn.  (Shekhovtsov & Flach 2018, section 4.)  ``local``: as ``sample``, except that
            outputs of linear maps and convolutions are drawn in place of random weights (local reparameterisation,
            Kingma et al. 2015).  ``controlled``: means and covariance by draws of the plain network with a linear map
            as control variate, and their standard errors.  It is the default of evaluation.
        rtol: of ``controlled``: draws are added until the standard error of σ is below this part of σ.
        max_rows: of ``controlled``: the largest number of draws; 0 for the linear answer alone, which has no error.
        seed: of ``controlled``: of the draws.
        memory: of ``controlled``: bytes that a call may take beside the network.  A batch that takes more is divided,
            down to single examples.  None for 256 MiB, or eight times a plain call where that is more.

    A context outranks what :func:`convert` or :func:`set_method` gave a network; within contexts, the innermost counts.
    It holds for the thread or asyncio task that entered it; code under ``torch.compile`` is compiled once per method.

    Raises:
        InputError: for another name, a bad accuracy, or an accuracy for another method than ``controlled``.

    >>> import torch, momentgen
    >>> layer = momentgen.nn.ReLU()
    >>> x = momentgen.Moments(torch.zeros(1), torch.ones(1))
    >>> with momentgen.method("ap1"):
    ...     layer(x).mean
    tensor([0.])
    >>> layer(x).mean
    tensor([0.3989])
    """

    def __init__(
        self,
        name: Method,
        *,
        rtol: float | None = None,
        max_rows: int | None = None,
        seed: int | None = None,
        memory: int | None = None,
    ) -> None:
        _known(name)
        self._name: str = name
        accuracy = asked("method", name, rtol, max_rows, seed, memory)
        self._set = [within(_method, name), *([] if accuracy is None else [within(ACCURACY, accuracy)])]
        self._outer: list[str | None] = []

    def __enter__(self) -> None:
        if torch.compiler.is_dynamo_compiling():
            self._outer.append(_tracing.method)
            _tracing.method = self._name
        else:
            for one in self._set:
                one.__enter__()

    def __exit__(self, *_: object) -> None:
        if torch.compiler.is_dynamo_compiling():
            _tracing.method = self._outer.pop()
        else:
            for one in self._set:
                one.__exit__()


def _known(name: str) -> None:
    if name not in METHODS:
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {name!r}")


def current_method(own: str | None = None) -> str:
    """The method in force: the context's, else the network's ``own``, else ``ap2``."""
    if torch.compiler.is_dynamo_compiling() and _tracing.method is not None:
        return _tracing.method
    found = _seen.value
    return own or "ap2" if found is _seen else cast(str, found)


# ------------------------------------------------------------------------ lift


def _lift_value(where: object, value: Any, used: Propagation, training: bool, seen: list[tuple[Any, Any, Any]]) -> Any:
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


def inside() -> bool:
    """Whether a network is running on laws: what is called then is a part of it."""
    if torch.compiler.is_dynamo_compiling():
        return _tracing.depth > 0
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
    _check_hidden(where, args, kwargs)
    if isinstance(where, torch.nn.Module):
        check_flags(where)
    with Eagerly():
        return _run(where, forward, own, args, kwargs)


def _run(where: Any, forward: Callable[..., Any], own: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = current_method(own)
    if name == DEFAULT:
        name = by_default.chosen(where, args, kwargs)
    remember = remembered(name, forward, args, kwargs)
    forward, args, kwargs = with_sources(name, forward, args, kwargs)
    if name in PROPAGATIONS:
        return remember(_propagated(name, where, forward, args, kwargs))
    out = _on_laws(where, forward, name, args, kwargs)
    if name != "ap2" or getattr(where, "DEFAULT", None) != DEFAULT:
        return lower(out)
    return lower(_in_range(where, forward, args, kwargs, out), wide=True)


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


def _in_range(where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    """What a deterministic method returned; raises where its dtype does not hold the variances."""
    if not torch.compiler.is_compiling():
        again = functools.partial(_on_laws, where, forward, "ap2", args, kwargs)
        out_of_range.refuse(where, out, (args, kwargs), again)
    return out


def _check_hidden(where: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise for moments that an argument holds where they cannot be replaced."""
    for value in hidden((*args, *kwargs.values())):
        raise InputError(
            f"{described(where)}: expected moments as arguments or in containers, got some that a "
            f"{type(value).__name__} holds, where they would count as nothing: {value!r:.80}. Pass them as arguments "
            "of their own"
        )


def _on_laws(where: Any, forward: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``forward`` makes of laws of the arguments by the method ``name``."""
    training = bool(getattr(where, "training", False))
    used = ALL[name]
    seen: list[tuple[Any, Any, Any]] = []

    def lift(value: Any) -> Any:
        return _lift_value(where, value, used, training, seen)

    lifted, named = mapped(lift, args), mapped(lift, kwargs)
    if torch.compiler.is_dynamo_compiling():
        _tracing.depth += 1
        if used.is_drawn:
            out = forward(*lifted, **named)
        else:
            keep_order_of_products()
            with TracedDraws(used.noise):
                out = forward(*lifted, **named)
        _tracing.depth -= 1
        return out
    # A single layer or function draws nothing that a law does not meet.
    single = getattr(where, "DEFAULT", None) != DEFAULT
    with entered(None if single else used.draws):
        return forward(*lifted, **named)


class entered:  # noqa: N801 - a context manager, named as it is used
    """Within the context a network runs on laws: what is called is a part of it.

    Args:
        draws: what becomes of draws that meet no law; None to leave them as they are.
    """

    def __init__(self, draws: Draws | None = None) -> None:
        self._draws = draws

    def __enter__(self) -> None:
        if not einops.registered and "einops" in sys.modules:
            einops.register()
        self._set = [within(_inside, True), within(RUN, {}), within(lost.RECORDING, torch.is_grad_enabled())]
        if self._draws is not None:
            self._set.append(within(STARTED, torch.get_rng_state()))
        for one in self._set:
            one.__enter__()
        if self._draws is not None:
            self._draws.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._draws is not None:
            self._draws.__exit__(kind, error, trace)
        for one in self._set:
            one.__exit__()
        if isinstance(error, RuntimeError | TypeError) and not isinstance(error, MomentgenError):
            explained = lost.explained(error)
            if explained is not None:
                raise explained from error


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
        by_flag = f"{by_default.by_flag(mode == 'training')}, the default in {mode} mode"
        return f"{found}  # method: {self.propagation or by_flag}"

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
        _known(name)
    for part in module.modules():
        if isinstance(part, Border):
            part.propagation = name
    return module

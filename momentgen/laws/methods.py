"""The methods: for each, how inputs and random parameters enter a network, what its result says, and which is in force.

A context says it, else the network, else its training flag.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.diagonal import Diagonal, diagonal, point
from momentgen.laws.draws import Draws
from momentgen.laws.law import Law
from momentgen.laws.nests import leaves_of
from momentgen.laws.notes import note, seen_by_compiler, warn_once, within
from momentgen.laws.values import draw
from momentgen.laws.weights import WeightOf, controlled_weight, drawn_weight, independent_weight, local
from momentgen.runtime import JointMoments, Moments


@dataclass(frozen=True)
class Propagation:
    """One method.

    Args:
        name: what users call it.
        lift: what stands for a random input while the network runs.
        certain: what stands for a certain one; None if it stays the tensor that it is.
        weight: what stands for a random parameter.
        draws: what becomes of draws of the network that meet no law; None to leave them as they are.
        is_distribution: whether an output is a distribution, and not one draw or a mean.
    """

    name: str
    lift: Callable[[Moments], Any]
    certain: Callable[[Tensor], Any] | None
    weight: WeightOf
    draws: Draws | None = None
    is_distribution: bool = False

    @property
    def noise(self) -> type[Law] | None:
        """What noise of the network's own makes of certain values; None for its mean."""
        return Diagonal if self.is_distribution else None

    @property
    def of_mean(self) -> bool:
        """Whether random values are taken at their means."""
        return not (self.is_drawn or self.is_distribution)

    @property
    def is_drawn(self) -> bool:
        """Whether the network runs on tensors."""
        return self.certain is None


def _independent(value: Moments) -> Law:
    noise = value.noise
    if noise is not None and not (noise.is_normal and noise.is_known):
        alone = "" if noise.is_known else ", its values for independent"
        note(f"ap2: noise of the distribution {noise} is taken for normal{alone}; controlled and sample draw from it")
    if isinstance(value, JointMoments):
        note("ap2: the values of an input are correlated, and taken as independent; controlled knows better")
    return diagonal(value.mean, value.var)


#: each method by its name
ALL: Final[dict[str, Propagation]] = {
    one.name: one
    for one in (
        Propagation("ap1", lambda value: point(value.mean), point, lambda mean, *_: mean, Draws(None)),
        Propagation(
            "ap2",
            _independent,
            lambda value: point(value, Diagonal),
            independent_weight,
            Draws(Diagonal),
            is_distribution=True,
        ),
        Propagation("sample", draw, None, drawn_weight),
        Propagation("local", draw, None, local),
        Propagation("controlled", draw, None, controlled_weight, is_distribution=True),
    )
}


# ------------------------------------------------------------ how exact an answer is to be


class Accuracy(NamedTuple):
    """The accuracy that ``controlled`` aims at.

    Attributes:
        rtol: rows are added until the error of the standard deviation is below this part of it.
        max_rows: the largest number of rows; 0 for the linear answer alone, without an error.
        seed: of the draws.
        memory: bytes that a call may take; None for 256 MiB, or eight times a plain call where that is more.
    """

    rtol: float = 0.05
    max_rows: int = 256
    seed: int = 0
    memory: float | None = None


#: what a context asks for
_ACCURACY: Final[ContextVar[Accuracy]] = ContextVar("momentgen_accuracy")


def asked(
    where: str,
    method: str | None,
    rtol: float | None,
    max_rows: int | None,
    seed: int | None,
    memory: float | None = None,
) -> Accuracy | None:
    """The accuracy that a user asks for; None if no argument is given.

    Raises:
        InputError: for numbers that say nothing, and for another method than ``controlled``.
    """
    asked_for: dict[str, Any] = {"rtol": rtol, "max_rows": max_rows, "seed": seed, "memory": memory}
    if all(value is None for value in asked_for.values()):
        return None
    if method not in (None, "controlled"):
        raise InputError(f'{where}: rtol, max_rows, seed and memory are of method="controlled", got method={method!r}')
    given = Accuracy()._replace(**{name: value for name, value in asked_for.items() if value is not None})
    if not given.rtol > 0:
        raise InputError(f"{where}: expected rtol, a relative error, above 0, got {given.rtol!r}")
    if not isinstance(given.max_rows, int) or (given.max_rows < 8 and given.max_rows != 0):
        raise InputError(
            f"{where}: expected max_rows of at least 8, or 0 for the linear answer alone, got {given.max_rows!r}"
        )
    if memory is not None and not (isinstance(memory, int | float) and memory > 0):
        raise InputError(f"{where}: expected memory as a number of bytes above 0, got {memory!r}")
    if not isinstance(given.seed, int) or given.seed < 0:
        raise InputError(f"{where}: expected a whole number of at least 0 as the seed, got {given.seed!r}")
    return given


def accuracy(own: Accuracy | None = None) -> Accuracy:
    """What is in force: the context's, else the network's own, else the default."""
    return _ACCURACY.get(own or Accuracy())


# ------------------------------------------------------------ the method in force

Method = Literal["ap1", "ap2", "sample", "local", "controlled"]
#: what a user may ask for.
METHODS: Final[tuple[str, ...]] = get_args(Method)
#: of a network for which no method is said; users say None
DEFAULT: Final = "default"

#: the method that a context sets
CURRENT: Final[ContextVar[str]] = ContextVar("momentgen_method")


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


_seen: Any = seen_by_compiler(CURRENT)
TRACING = _Tracing()


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
        memory: float | None = None,
    ) -> None:
        known(name)
        self._name: str = name
        accuracy = asked("method", name, rtol, max_rows, seed, memory)
        self._set = [within(CURRENT, name), *([] if accuracy is None else [within(_ACCURACY, accuracy)])]
        self._outer: list[str | None] = []

    def __enter__(self) -> None:
        if torch.compiler.is_dynamo_compiling():
            self._outer.append(TRACING.method)
            TRACING.method = self._name
        else:
            for one in self._set:
                one.__enter__()

    def __exit__(self, *_: object) -> None:
        if torch.compiler.is_dynamo_compiling():
            TRACING.method = self._outer.pop()
        else:
            for one in self._set:
                one.__exit__()


def known(name: str) -> None:
    """Raise for a name of no method."""
    if name not in METHODS:
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {name!r}")


def current_method(own: str | None = None) -> str:
    """The method in force: the context's, else the network's ``own``, else ``ap2``."""
    if torch.compiler.is_dynamo_compiling() and TRACING.method is not None:
        return TRACING.method
    found = _seen.value
    return own or "ap2" if found is _seen else cast(str, found)


class TrainingModeWarning(UserWarning):
    """A network's training flag decides its method, and does not fit how the network is used."""


def by_flag(training: bool) -> str:
    """The default method in training and in evaluation mode."""
    return "ap2" if training else "controlled"


def chosen(where: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The default method for a call of ``where``; warns once per process where its training flag looks forgotten."""
    training = bool(getattr(where, "training", False))
    name = by_flag(training)
    if isinstance(where, torch.nn.Module) and not torch.compiler.is_compiling():
        instead = f"so the default method is {name}; call .train() or .eval() on all of it, or convert(net, method=...)"
        parts = (part.training for part in where.modules() if part is not where)
        if next(parts, training) is not training and not any(flag is training for flag in parts):
            flags = ("training", "evaluation") if training else ("evaluation", "training")
            text = f"{type(where).__name__} is in {flags[0]} mode and all modules in it in {flags[1]} mode, {instead}"
            warn_once("mixed", text, TrainingModeWarning)
        elif training and not _trains(where, args, kwargs):
            text = f"{type(where).__name__} is in training mode and needs no gradient, {instead}"
            warn_once("training", text, TrainingModeWarning)
    return name


def _trains(where: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a gradient of the call's result may be asked for."""
    if not torch.is_grad_enabled():
        return False
    if any(parameter.requires_grad for parameter in where.parameters()):
        return True
    given = leaves_of((args, kwargs))
    tensors = [part for leaf in given for part in (leaf if isinstance(leaf, Moments) else (leaf,))]
    held = any(True for _ in where.parameters())
    return any(isinstance(part, Tensor) and part.requires_grad for part in tensors) or not held

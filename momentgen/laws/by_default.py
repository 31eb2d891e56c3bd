"""The method of a network that names none: its training flag decides, and a warning says where that looks forgotten."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from momentgen.laws.nests import leaves_of
from momentgen.runtime import Moments

__all__ = ["TrainingModeWarning", "by_flag", "chosen"]


class TrainingModeWarning(UserWarning):
    """A network's training flag decides its method, and does not fit how the network is used."""


#: the warnings that this process has had
_told: set[str] = set()


def by_flag(training: bool) -> str:
    """The default method in training and in evaluation mode."""
    return "ap2" if training else "controlled"


def chosen(where: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The default method for a call of ``where``; warns once per process where its training flag looks forgotten.

    Args:
        where: the network or function.
        args: of the call.
        kwargs: likewise.
    """
    training = bool(getattr(where, "training", False))
    name = by_flag(training)
    if isinstance(where, torch.nn.Module) and not torch.compiler.is_compiling():
        instead = f"so the default method is {name}; call .train() or .eval() on all of it, or convert(net, method=...)"
        parts = (part.training for part in where.modules() if part is not where)
        if next(parts, training) is not training and not any(flag is training for flag in parts):
            flags = ("training", "evaluation") if training else ("evaluation", "training")
            _tell(
                "mixed",
                f"{type(where).__name__} is in {flags[0]} mode and all modules in it in {flags[1]} mode, {instead}",
            )
        elif training and not _trains(where, args, kwargs):
            _tell("training", f"{type(where).__name__} is in training mode and needs no gradient, {instead}")
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


def _tell(kind: str, text: str) -> None:
    if kind not in _told:
        _told.add(kind)
        warnings.warn(text, TrainingModeWarning, stacklevel=2)

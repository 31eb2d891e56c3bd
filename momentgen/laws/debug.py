"""``debug``: look at what every rule returns.

Off by default: to look at values stops a GPU, and compiled code has none.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from momentgen.errors import MomentgenError
from momentgen.laws.context import seen_by_compiler, within
from momentgen.laws.unsupported import place

__all__ = ["debug", "inspect"]

_on: ContextVar[bool] = ContextVar("momentgen_debug")


active: Any = seen_by_compiler(_on)


class debug(within):  # noqa: N801 - a context manager, named as it is used
    """Within the context every rule's result is looked at; NaN, infinity or a negative variance raises where it arises.

    For eager mode: the values of compiled code are not looked at.

    Raises:
        MomentgenError: from the network, naming the function, the module and the line.

    >>> import torch, momentgen
    >>> x = momentgen.Moments(torch.tensor([float("nan")]), torch.ones(1))
    >>> with momentgen.debug():
    ...     momentgen.nn.ReLU()(x)
    Traceback (most recent call last):
    ...
    momentgen.errors.MomentgenError: relu, in ...: 1 of 1 values of the mean are not finite
    """

    def __init__(self) -> None:
        super().__init__(_on, True)


def inspect(name: str, laws: list[Any]) -> None:
    """Look at the laws in a result.

    Raises:
        MomentgenError: for what is not finite, or a negative variance.
    """
    for law in laws:
        for what, part in zip(("mean", "variance"), law._parts(), strict=False):
            wrong = ~part.detach().isfinite() if part.is_floating_point() else None
            if wrong is not None and bool(wrong.any()):
                raise MomentgenError(
                    f"{name}{place()}: {int(wrong.sum())} of {part.numel()} values of the {what} are not finite"
                )
            if what == "variance" and bool((part < 0).any()):
                raise MomentgenError(f"{name}{place()}: a variance is negative, {part.min().item():g}")

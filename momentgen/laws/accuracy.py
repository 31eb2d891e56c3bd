"""How exact an answer of the method ``controlled`` is to be: what a user asks for, by which draws."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, NamedTuple

from momentgen.errors import InputError

__all__ = ["ACCURACY", "Accuracy", "accuracy", "asked"]


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
    memory: int | None = None


#: what a context asks for
ACCURACY: Final[ContextVar[Accuracy]] = ContextVar("momentgen_accuracy")


def asked(
    where: str,
    method: str | None,
    rtol: float | None,
    max_rows: int | None,
    seed: int | None,
    memory: int | None = None,
) -> Accuracy | None:
    """The accuracy that a user asks for; None if no argument is given.

    Raises:
        InputError: for numbers that say nothing, and for another method than ``controlled``.
    """
    if rtol is None and max_rows is None and seed is None and memory is None:
        return None
    if method not in (None, "controlled"):
        raise InputError(f'{where}: rtol, max_rows, seed and memory are of method="controlled", got method={method!r}')
    default = Accuracy()
    given = Accuracy(
        default.rtol if rtol is None else rtol,
        default.max_rows if max_rows is None else max_rows,
        default.seed if seed is None else seed,
        memory,
    )
    if not given.rtol > 0:
        raise InputError(f"{where}: expected rtol, a relative error, above 0, got {given.rtol!r}")
    if not isinstance(given.max_rows, int) or (given.max_rows < 8 and given.max_rows != 0):
        raise InputError(
            f"{where}: expected max_rows of at least 8, or 0 for the linear answer alone, got {given.max_rows!r}"
        )
    if memory is not None and (not isinstance(memory, int) or memory <= 0):
        raise InputError(f"{where}: expected memory as a number of bytes above 0, got {memory!r}")
    if not isinstance(given.seed, int):
        raise InputError(f"{where}: expected a whole number as the seed, got {given.seed!r}")
    return given


def accuracy(own: Accuracy | None = None) -> Accuracy:
    """What is in force: the context's, else the network's own, else the default."""
    return ACCURACY.get(own or Accuracy())

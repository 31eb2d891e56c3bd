"""``Reads``: which random parameters a network reads while it runs, and an error for a plain one in their place.

A random parameter takes the place of the plain one in the modules of a twin (:mod:`momentgen.laws.twins`), and in what
their attributes hold.  A global variable or another object may still lead to the plain network.  What reads a plain
parameter there would take it for certain, so it raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch.overrides import TorchFunctionMode

from momentgen.errors import InputError
from momentgen.laws.table import METHODS, TABLE
from momentgen.laws.unsupported import place

__all__ = ["Reads"]

#: properties of a tensor that have its values; the others are its form
_VALUES: Final = frozenset(("data", "T", "mT", "H", "mH", "real", "imag"))


class Reads(TorchFunctionMode):
    """Within the mode, functions that meet a plain parameter raise.

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
        if not _asks_form(func):
            raise InputError(
                f"{getattr(func, '__name__', func)}{place()}: expected the random value of the parameter {name!r}, got "
                "that of the plain network, which a global variable or an object holds. Hold the part that reads it "
                f"as an attribute of the network, or leave {name!r} out by randomise(..., only=...)"
            )


def _asks_form(func: Any) -> bool:
    """Whether a function asks for a tensor's form, as its shape, and not for its values."""
    owner = getattr(func, "__self__", None)
    if getattr(func, "__name__", "") == "__get__":
        return getattr(owner, "__name__", "") not in _VALUES
    entry = METHODS.get(func) if isinstance(func, str) else TABLE.get(func)
    return entry is not None and entry.kind == "query"

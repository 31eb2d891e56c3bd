"""What users are told: errors for functions without a rule, with their place, and notes on what a pass approximates.

Context variables too: a value within a ``with``, and what ``torch.compile`` may read of it.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar, Token
from types import FrameType
from typing import Any

import torch

from momentgen.errors import UnsupportedError
from momentgen.extras import SITE
from momentgen.laws.table import Entry, names


class within:  # noqa: N801 - a context manager, named as it is used
    """Within the context the variable has the value; a class, which takes a third of a generator's time.

    >>> depth = ContextVar("depth", default=0)
    >>> with within(depth, 1):
    ...     depth.get()
    1
    """

    def __init__(self, variable: ContextVar[Any], value: Any) -> None:
        self._variable, self._value = variable, value
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> Any:
        self._tokens.append(self._variable.set(self._value))
        return self._value

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._tokens.pop())


def seen_by_compiler(variable: ContextVar[Any]) -> Any:
    """An object whose attribute ``value`` is the variable's; the object itself where nothing is set.

    A property written in C: ``torch.compile`` reads it while it traces, and guards the compiled code on what it says.
    It can do neither with :meth:`ContextVar.get`.
    """
    return type("Seen", (), {"value": property(variable.get)})()


#: what to do about a function that has no rule
DEFAULT_INSTEAD = f"the method controlled, the default in evaluation, samples it ({SITE}/networks/)"

#: the same of complex values within a network
COMPLEX_INSTEAD = f"{DEFAULT_INSTEAD}, if outputs are real: return torch.view_as_real of complex ones"
#: functions that make complex values of real ones
_TO_COMPLEX = names(
    "fft ifft rfft ihfft fft2 ifft2 rfft2 ihfft2 fftn ifftn rfftn ihfftn complex view_as_complex polar stft cfloat "
    "cdouble chalf"
)

_DECISIONS = "the result depends on the value that is drawn"
_SAMPLED = f"the deterministic methods have no rule for it ({SITE}/support/)"
_NO_RULE = (
    f"{_SAMPLED}; if it takes one value at a time, write its rule (`momentgen new NAME`) and register the op by "
    "`momentgen.laws.register_activation`"
)
_REASONS = {"decision": _DECISIONS, "sampled": _SAMPLED}
_HERE = __name__.rpartition(".")[0]


def unsupported(func: Any, law: object, why: str | None = None) -> UnsupportedError:
    """The error that names ``func``, the law, the module path and the line of the network's code.

    Args:
        func: the function object of torch, or its entry in the table.
        law: the law that met it.
        why: the reason, to end a sentence; None for the usual one of the function's kind.
    """
    if isinstance(func, torch._C.ScriptMethod):
        why = "a module by torch.jit.script takes tensors only; convert the network with the module that was scripted"
    entry = func if isinstance(func, Entry) else None
    name = getattr(func, "__name__", "a function") if entry is None else entry.name
    if entry is None and not torch.compiler.is_compiling():
        name = torch.overrides.resolve_name(func) or getattr(func, "__name__", None) or str(func)
    if why is None:
        if name.rpartition(".")[2] in _TO_COMPLEX:
            why = f"{_SAMPLED}; {COMPLEX_INSTEAD}"
        else:
            why = f"{_NO_RULE if entry is None else _REASONS.get(entry.kind, _NO_RULE)}; {DEFAULT_INSTEAD}"
    shape = "" if torch.compiler.is_compiling() else f" of shape {tuple(law.shape)}"  # type: ignore[attr-defined]
    return UnsupportedError(f"{name} of a random value, {type(law).__name__}{shape}{place()}: {why}")


def cannot_become(dtype: torch.dtype) -> str:
    """Why no rule makes a random value one of this dtype, for :func:`unsupported`."""
    return f"a random value cannot become {dtype}" + (f"; {COMPLEX_INSTEAD}" if dtype.is_complex else "")


def place() -> str:
    """Where the running network calls, as `` in module.path, file:line``; empty if that cannot be told."""
    if torch.compiler.is_compiling():
        return ""
    modules: list[torch.nn.Module] = []
    line: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        own = str(frame.f_globals.get("__name__", ""))
        if line is None and not own.startswith(("torch.", _HERE, "momentgen.nn")) and own != "torch":
            line = frame
        module = frame.f_locals.get("self")
        if isinstance(module, torch.nn.Module) and (not modules or modules[-1] is not module):
            modules.append(module)
        frame = frame.f_back
    text = ""
    if modules:
        inner, outer = modules[0], modules[-1]
        paths = [name for name, part in outer.named_modules() if part is inner]
        text += (
            f", in {paths[0] or 'the network'} ({type(inner).__name__})" if paths else f", in {type(inner).__name__}"
        )
    if line is not None:
        text += f", at {line.f_code.co_filename}:{line.f_lineno}"
    return text


class AccuracyWarning(UserWarning):
    """An answer is less accurate than asked for, or NaN; ``.notes`` says why.  Given once per process and reason."""


#: the reasons for which this process has had a warning
_warned: set[str] = set()

_listener: ContextVar[dict[str, int] | None] = ContextVar("momentgen_notes", default=None)


def are_heard() -> bool:
    """Whether anybody listens to notes."""
    return not torch.compiler.is_compiling() and _listener.get() is not None


def note(text: str, where: bool = False) -> None:
    """Say that something was taken approximately, and in which line; heard by :func:`listening`, in eager mode."""
    if are_heard():
        found: Any = _listener.get()
        text += place() if where else ""
        found[text] = found.get(text, 0) + 1


def note_and_warn(reason: str, text: str) -> None:
    """A note that is a warning too, the first time for this reason."""
    note(text)
    warn_once(reason, text, AccuracyWarning)


def warn_once(reason: str, text: str, kind: type[Warning]) -> None:
    """A warning, the first time for this reason."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(text, kind, stacklevel=3)


@contextlib.contextmanager
def overheard() -> Iterator[dict[str, int]]:
    """Collects the notes of what runs within, as :func:`listening`; who listens outside hears them too."""
    own: dict[str, int] = {}
    try:
        with within(_listener, own):
            yield own
    finally:
        outer = _listener.get()
        if outer is not None:
            for text, count in own.items():
                outer[text] = outer.get(text, 0) + count


def listening() -> within:
    """Collect the notes of what runs within: text -> how often."""
    return within(_listener, {})


def note_fast_path(name: str) -> None:
    """Note how torch's fast path differs, where this is the function by which an encoder asks whether to take it."""
    if name == "_nested_tensor_from_mask_left_aligned":
        note(
            "nn.TransformerEncoder: padded tokens are computed, as torch does with gradients; without gradients its "
            "fast path may make them 0"
        )

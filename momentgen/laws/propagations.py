"""Methods that run a network several times, on one example at a time: how they are called, and what fails.

``covariance``, ``adjoint`` and ``controlled``, the default of networks in evaluation, register here, and the border
(:mod:`momentgen.laws.border`) calls them.  They run in eager mode, within compiled code too.  What such a method cannot
run is an error that says which can: nothing falls back by itself.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch import Tensor

from momentgen.errors import InputError, MomentgenError, UnsupportedError
from momentgen.extras import SITE
from momentgen.laws.context import within
from momentgen.laws.kept import Kept
from momentgen.laws.unsupported import DEFAULT_INSTEAD
from momentgen.runtime.dynamo import graph_break

__all__ = ["DEFAULT", "PROPAGATIONS", "STARTED", "FailsAlone", "propagated_by"]

#: of a network for which no method is said; users say None
DEFAULT: Final = "default"

#: name -> a function of the network or function (for errors), what runs on laws, and its arguments; it returns moments
PROPAGATIONS: dict[str, Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]] = {}

#: the state of torch's generator when a network began to run, by a method that knows the moments of draws
STARTED: Final[ContextVar[Tensor | None]] = ContextVar("momentgen_started", default=None)

_NOT_COMPILED: Final = (
    "momentgen's methods controlled, the default of networks in evaluation, adjoint and covariance run a network "
    'several times, and cannot be compiled in full or exported; method="ap2" can, with all values of a layer taken as '
    f"independent ({SITE}/networks/ says what that loses)"
)


class FailsAlone(Exception):  # noqa: N818 - never seen by a user: its cause is
    """Its cause came of one example alone, on which the plain network fails too."""


@graph_break(_NOT_COMPILED)
def propagated_by(
    name: str,
    where: Any,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plain: Callable[[], Any],
) -> Any:
    """Moments of what ``forward`` returns, by the method ``name``; a graph break where code is compiled.

    Args:
        name: a key of :data:`PROPAGATIONS`.
        where: the network or function, for errors.
        forward: what runs on laws.
        args: tensors, moments, and whatever else.
        kwargs: likewise.
        plain: runs the network on drawn tensors; called where the method fails, to say whether that does.

    Raises:
        UnsupportedError: under ``torch.export``, and where the method cannot run a network that torch can.
        InputError: the same, where the arguments or the outputs are at fault.
    """
    if torch.compiler.is_exporting():
        raise UnsupportedError(f"torch.export of {_name(where)}: {_NOT_COMPILED}")

    def run() -> Any:
        kept = Kept(None if name == "controlled" else where)  # which sees to that by itself

        def begun(*own: Any, **named: Any) -> Any:
            kept.restore()
            return forward(*own, **named)

        try:
            try:
                with within(STARTED, torch.get_rng_state()):
                    return PROPAGATIONS[name](where, begun, args, kwargs)
            finally:
                kept.restore()
        except Exception as error:
            is_alone = isinstance(error, FailsAlone)
            error = error.__cause__ if isinstance(error, FailsAlone) else error  # type: ignore[assignment]
            runs = name != "controlled" and _runs(plain)  # which runs the plain network: what fails fails there too
            kept.restore()
            if not runs:
                raise error
            said = DEFAULT_INSTEAD in str(error)
            instead = f"method {name}" + ("" if said else "; controlled, the default of evaluation, runs this network")
            if isinstance(error, MomentgenError):
                kind = InputError if isinstance(error, InputError) else UnsupportedError
                raise kind(f"{error} ({instead})") from error
            how = (
                "run on each example alone, as a batch of one, it fails"
                if is_alone
                else "run on random values, it fails"
            )
            raise UnsupportedError(
                f"{_name(where)}: {how}{_line(error)} with {type(error).__name__}: {error} ({instead})"
            ) from error

    # Wrapped here, since torch.compiler.disable imports torch._dynamo.
    if not torch.is_inference_mode_enabled():
        return torch.compiler.disable(run)()
    with torch.inference_mode(False), torch.no_grad():  # these methods differentiate, which inference mode rules out
        return torch.compiler.disable(run)()


def _runs(plain: Callable[[], Any]) -> bool:
    try:
        with torch.no_grad(), torch.random.fork_rng():
            plain()
    except Exception:
        return False
    return True


def _line(error: Exception) -> str:
    """Where the network's own code failed, as `` at file:line``; empty if that cannot be told."""
    own = ("torch.", "momentgen.")
    found = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__", "")).startswith(own)
    ]
    return f" at {found[-1][0]}:{found[-1][1]}" if found else ""


def _name(where: object) -> str:
    return type(where).__name__ if isinstance(where, torch.nn.Module) else str(where)

"""How the border calls the method ``controlled``, the default of networks in evaluation.

It runs a network several times, in eager mode, within compiled code too.  The border (:mod:`momentgen.laws.border`) is
below it, so that it registers here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from momentgen.errors import UnsupportedError
from momentgen.extras import SITE
from momentgen.runtime.dynamo import graph_break

__all__ = ["DEFAULT", "PROPAGATIONS", "propagated_by"]

#: of a network for which no method is said; users say None
DEFAULT: Final = "default"

#: name -> a function of the network or function (for errors), what runs on laws, and its arguments; it returns moments
PROPAGATIONS: dict[str, Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]] = {}

_NOT_COMPILED: Final = (
    "momentgen's method controlled, the default of networks in evaluation, runs a network several times, and cannot be "
    'compiled in full or exported; method="ap2" can, with all values of a layer taken as independent '
    f"({SITE}/networks/ says what that loses)"
)


@graph_break(_NOT_COMPILED)
def propagated_by(
    name: str, where: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Moments of what ``forward`` returns, by the method ``name``; a graph break where code is compiled.

    Args:
        name: a key of :data:`PROPAGATIONS`.
        where: the network or function, for errors.
        forward: what runs on laws.
        args: tensors, moments, and whatever else.
        kwargs: likewise.

    Raises:
        UnsupportedError: under ``torch.export``.
    """
    if torch.compiler.is_exporting():
        name = type(where).__name__ if isinstance(where, torch.nn.Module) else str(where)
        raise UnsupportedError(f"torch.export of {name}: {_NOT_COMPILED}")

    # Wrapped here, since torch.compiler.disable imports torch._dynamo.
    run = torch.compiler.disable(PROPAGATIONS[name])
    if not torch.is_inference_mode_enabled():
        return run(where, forward, args, kwargs)
    with torch.inference_mode(False), torch.no_grad():  # it differentiates, which inference mode rules out
        return run(where, forward, args, kwargs)

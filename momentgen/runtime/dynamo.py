"""Marks that ``torch.compile`` reads on a function, set without importing ``torch._dynamo``.

The decorators of ``torch.compiler`` set the same, but import it to do so, which takes as long as importing torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["constant_result", "graph_break", "keep_order_of_products"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant_result(function: _Function) -> _Function:
    """Run the function while a graph is traced, and make its result a constant of the graph.

    As ``torch.compiler.assume_constant_result``.  The arguments must be constants as well.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def graph_break(reason: str) -> Callable[[_Function], _Function]:
    """Break the graph at calls of the function, which runs outside; an error says ``reason`` under ``fullgraph=True``.

    It is ``torch.compiler.disable(reason=...)`` for this function alone: functions that it calls are traced again.
    """

    def mark(function: _Function) -> _Function:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        function._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
        return function

    return mark


@constant_result
def keep_order_of_products() -> bool:
    """Called in traced code: within a mode of functions ``a @ b`` keeps its order where a is no tensor and b is one.

    dynamo swaps the two and calls the reversed function, of which it knows none for products.
    """
    from torch._dynamo.variables import builtin

    reversed_functions = getattr(builtin, "BUILTIN_TO_TENSOR_RFN_MAP", None)
    if reversed_functions is None:  # a version that does not swap
        return False
    builtin.populate_builtin_to_tensor_fn_map()
    reversed_functions.setdefault(operator.matmul, torch.Tensor.__rmatmul__)
    return True

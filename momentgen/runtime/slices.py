"""Elementwise functions of tensors, evaluated slice by slice to bound their memory.

The PyTorch code of a rule makes hundreds of tensors, and autograd would save each of them.  Here only inputs are saved.
Values are computed for some thousand elements at a time, and so are derivatives, for which the code runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["DERIVATIVES", "VALUES", "Steps", "in_cells", "in_slices"]


@dataclass(frozen=True)
class Steps:
    """How many elements a slice has.

    Args:
        least: on the CPU, at least: with fewer Python would take longer than the arithmetic.
        most: on the CPU, at most for each thread: tensors of a slice should stay in its cache.
        share: in between, this part of all elements, so that memory stays in proportion to theirs.
        device: on another device.
    """

    least: int
    most: int
    share: int
    device: int

    def of(self, tensor: Tensor) -> int:
        """For the elements of ``tensor``."""
        if tensor.device.type != "cpu":
            return self.device
        return min(self.most * torch.get_num_threads(), max(self.least, tensor.numel() // self.share))


#: where no derivative is asked for: some fifty tensors live at a time, or the powers of two values, about a hundred
VALUES = Steps(least=1 << 12, most=1 << 15, share=12, device=1 << 22)
#: of what is put in order by cell, and within a cell
_ORDERED = Steps(least=1 << 17, most=1 << 19, share=12, device=1 << 22)
_WITHIN = Steps(least=1 << 13, most=1 << 15, share=12, device=1 << 22)
#: where autograd keeps what it needs of a slice: two to four thousand tensors
DERIVATIVES = Steps(least=3 << 7, most=1 << 13, share=2048, device=1 << 18)


def in_slices(
    function: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor], outputs: int, steps: Steps
) -> tuple[Tensor, ...]:
    """``function`` of tensors of one dense layout, evaluated slice by slice.

    Args:
        function: elementwise.
        tensors: its arguments, dense and strided alike.
        outputs: how many tensors it returns, each like the first argument.
        steps: how large a slice is.

    >>> x = torch.arange(10.0).reshape(2, 5)
    >>> in_slices(lambda x: (x * x,), [x], 1, Steps(3, 3, 1, 3))[0].tolist()
    [[0.0, 1.0, 4.0, 9.0, 16.0], [25.0, 36.0, 49.0, 64.0, 81.0]]
    """
    first = tensors[0]
    step = steps.of(first)
    if first.numel() <= step:
        return function(*tensors)
    results = tuple([torch.empty_like(first) for _ in range(outputs)])
    flat = [_in_memory_order(tensor) for tensor in tensors]
    for start in range(0, first.numel(), step):
        values = function(*[tensor[start : start + step] for tensor in flat])
        for result, value in zip(results, values, strict=True):
            _in_memory_order(result)[start : start + step] = value
    return results


def in_cells(
    function: Callable[..., tuple[Tensor, ...]],
    cell_of: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    outputs: int,
) -> tuple[Tensor, ...]:
    """The same for a function that is cheaper where all elements are of one cell: they are put in order by it.

    Args:
        function: elementwise, of tensors and the number of the cell that their elements are of.
        cell_of: the number of each element's cell, of the same tensors.
        tensors: the arguments, dense and strided alike.
        outputs: how many tensors ``function`` returns, each like the first argument.

    >>> x = torch.tensor([3.0, -1.0, 2.0])
    >>> in_cells(lambda x, cell: (x * cell,), lambda x: (x > 0).double(), [x], 1)[0].tolist()
    [3.0, -0.0, 2.0]
    """

    def ordered(*tensors: Tensor) -> tuple[Tensor, ...]:
        flat = [_in_memory_order(tensor) for tensor in tensors]
        results = tuple([torch.empty_like(tensors[0]) for _ in range(outputs)])
        numbers = cell_of(*flat).long()
        counts = numbers.bincount().tolist()
        for cell, places in enumerate(torch.split(numbers.argsort(), counts)):
            if places.numel():
                parts = [tensor[places] for tensor in flat]
                values = in_slices(lambda *part, cell=cell: function(*part, cell), parts, outputs, _WITHIN)
                for result, value in zip(results, values, strict=True):
                    _in_memory_order(result)[places] = value
        return results

    return in_slices(ordered, tensors, outputs, _ORDERED)


def _in_memory_order(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))

"""Any function on the shift: the mean of the vector-Jacobian products of a few rows, by autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from momentgen.laws.controlled.call import Call, Shifted, has_derivative
from momentgen.laws.controlled.stack import Stack
from momentgen.laws.nests import mapped, tensors_in

__all__ = ["pulled", "whole"]

#: whether two tensors share memory, of any layout
_is_alias: Callable[[Tensor, Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]


def pulled(call: Call) -> Shifted | None:
    """Any function: the mean of the vector-Jacobian products of a few rows, by autograd."""
    mode, record = call.mode, call.record
    given = tensors_in((*call.args, *call.kwargs.values()))
    inputs = list({id(value): value for value in given if call.random(value)}.values())  # one given twice is one
    mode.curved |= bool(inputs)
    if not inputs or torch.is_inference_mode_enabled():  # which records nothing
        call.run()
        return None
    if mode.graphs or (mode.last and not record.graphs):
        _recorded(call, inputs)
    else:
        call.run()
    if mode.last and record.graphs and not _fits(record.graphs[0], inputs, call.out):
        record.graphs.clear()
        _recorded(call, inputs)
    if not record.graphs:
        return None

    def shifted() -> Any:
        graphs = record.graphs
        outs = [value for value in tensors_in((call.out,)) if has_derivative(value)]
        found = list(_Pull.apply(graphs, outs, mode.keeps_graph, *map(call.shift, inputs)))
        places = {id(value): shift for value, shift in zip(outs, found, strict=True)}
        return mapped(lambda value: places.get(id(value)), call.out)

    return shifted


def whole(
    call: Callable[[list[Tensor]], list[Any]], rows: Sequence[list[Tensor]], shifts: list[Tensor], keeps: bool
) -> list[Tensor | None] | None:
    """The shifts of a whole network's outputs, of which no function has been seen: the mean over some of its rows.

    None where it has no derivative.

    Args:
        call: the leaves of the outputs for values of the inputs.
        rows: values of the inputs.
        shifts: of the inputs.
        keeps: whether the answer will be differentiated.
    """
    graphs = []
    places: list[int] = []
    found: list[Any] = []
    for values in rows:
        with torch.enable_grad():
            own = [_own(value, keeps) for value in values]
            try:
                found = call([value.clone() for value in own])  # which it may write to
            except Exception:  # whatever it raises of values with gradients, as where it asks for those of NumPy
                return None
        places = [place for place, leaf in enumerate(found) if has_derivative(leaf) and leaf.requires_grad]
        graphs.append((own, [found[place] for place in places], Stack(1, 1)))
    if not places or any(len(outs) != len(places) for _, outs, _ in graphs):
        return None
    with torch.enable_grad():
        known = dict(zip(places, _Pull.apply(graphs, graphs[0][1], keeps, *shifts), strict=True))
    return [known.get(place) for place in range(len(found))]


def _own(value: Tensor, keeps: bool) -> Tensor:
    """A copy from which a graph starts: what the network writes into its tensors later is no matter of the graph."""
    return value.clone() if keeps and value.requires_grad else value.detach().clone().requires_grad_()


def _recorded(call: Call, inputs: list[Tensor]) -> None:
    """Compute the result with a graph of its own, and keep that."""
    keeps = call.mode.keeps_graph
    with torch.enable_grad(), _differentiable(call.name, keeps):
        own = {id(value): _own(value, keeps) for value in inputs}

        def changed(value: Any) -> Any:
            return own.get(id(value), value) if isinstance(value, Tensor) else value

        args, kwargs = mapped(changed, call.args), mapped(changed, call.kwargs)
        before = [value._version for value in own.values()]
        try:
            out = call.function(*args, **kwargs)
            writes = call.name == "__set__" or before != [value._version for value in own.values()]
        except Exception:  # whatever it raises of copies with gradients; what it raises itself, it raises again
            writes = True
    if writes:  # to its arguments, and not to copies of them
        call.run()
        return
    outs = [value for value in tensors_in((out,)) if has_derivative(value)]
    if outs and all(value.requires_grad for value in outs):
        call.record.graphs.append((list(own.values()), outs, call.mode.stack))
    if any(_is_alias(value, given) for value in outs for given in own.values()):
        call.run()  # what is written into a view of an argument must reach that
        return
    call.out = mapped(
        lambda value: (value if keeps else value.detach()).clone() if has_derivative(value) else value, out
    )


@contextlib.contextmanager
def _differentiable(name: str, twice: bool) -> Iterator[None]:
    """Makes functions of torch differentiable: cuDNN's recurrent layers in evaluation, fused attention twice."""
    with contextlib.ExitStack() as stack:
        if name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if twice:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield


def _fits(graph: tuple[list[Tensor], list[Tensor], Stack], inputs: list[Tensor], out: Any) -> bool:
    """Whether the graph of other rows is one of the same shapes."""
    outs = [value for value in tensors_in((out,)) if has_derivative(value)]
    shapes = [[graph[2].of_row(value.shape) for value in part] for part in graph[:2]]
    return shapes == [[value.shape for value in part] for part in (inputs, outs)]


class _Pull(torch.autograd.Function):
    """Zeros of the shapes of a function's results, whose derivative is the mean of those in some graphs."""

    @staticmethod
    def forward(
        ctx: Any,
        graphs: list[tuple[list[Tensor], list[Tensor], Stack]],
        like: list[Tensor],
        keeps: bool,
        *shifts: Tensor,
    ) -> Any:
        ctx.graphs, ctx.keeps = graphs, keeps
        ctx.set_materialize_grads(False)
        return tuple(torch.zeros_like(value) for value in like)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        totals: list[Tensor | None] = [None] * len(ctx.graphs[0][0])
        count = sum(stack.rows for _, _, stack in ctx.graphs)
        for inputs, outs, stack in ctx.graphs:
            used = [
                (out, stack.each(grad, out.shape)) for out, grad in zip(outs, grads, strict=True) if grad is not None
            ]
            if not used:
                continue
            found = torch.autograd.grad(
                [out for out, _ in used],
                inputs,
                [grad for _, grad in used],
                retain_graph=True,
                create_graph=ctx.keeps,
                allow_unused=True,
            )
            for place, grad in enumerate(found):
                if grad is not None:
                    grad = stack.total(grad, list(range(stack.rows))) / count
                    total = totals[place]
                    totals[place] = grad if total is None else total + grad
        return (None, None, None, *totals)

"""Derivatives of the opaque operators, for autograd, ``torch.func`` and ``torch.compile``.

First derivatives are the generated backward kernels.  Their derivatives go
through the generated PyTorch code, which torch differentiates slice by slice.
A second derivative saves only its inputs.  Higher derivatives, of any order
and in any mode, work the same way.

Two autograd functions make calls differentiable.  The plain one is lean, and
``torch.compile`` can trace it.  The transformable one has ``vmap`` and ``jvp``,
and is used while a ``torch.func`` transform or forward-mode differentiation is
active.  Values without a derivative in any transform need neither.  They are
taken out of their wrappers, since a function costs torch half a millisecond.
(An autograd formula registered on the operator itself could replace the plain
function, but makes ``torch.func.jvp`` silently zero.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from momentgen.runtime.inputs import transforming
from momentgen.runtime.kernel import Kernel, batch_first, in_one_layout
from momentgen.runtime.slices import DERIVATIVES, in_slices

__all__ = ["differentiable", "in_forward_mode", "transformed"]

Scalars = tuple[float, ...]
Outputs = tuple[Tensor, ...]

# Private in torch: where the name is gone, take the general path.
_functorch: Any = getattr(torch._C, "_functorch", None)
_USED = (
    *("maybe_get_level", "is_batchedtensor", "is_gradtrackingtensor", "_unwrap_batched", "_unwrap_for_grad"),
    *("_add_batch_dim", "get_interpreter_stack", "unwrap_if_dead", "TransformType"),
)
_cleared: Any = None
if all(hasattr(_functorch, name) for name in _USED):
    _cleared = getattr(getattr(torch._functorch, "pyfunctorch", None), "temporarily_clear_interpreter_stack", None)
    _REVERSE_AND_VMAP = (_functorch.TransformType.Vmap, _functorch.TransformType.Grad)


def transformed() -> bool:
    """Whether a ``torch.func`` transform or forward-mode differentiation is active."""
    return transforming() or in_forward_mode()


def in_forward_mode() -> bool:
    """Whether forward-mode differentiation is active."""
    return int(getattr(forward_ad, "_current_level", 0)) >= 0


def differentiable(which: str, kernel: Kernel, params: Scalars, tensors: Sequence[Tensor]) -> Outputs:
    """The outputs of a kernel, with a derivative if one can be asked for.

    Args:
        which: ``forward``, or ``backward``, whose outputs are the gradients of the inputs.
        kernel: of one variant.
        params: numbers.
        tensors: the inputs; of ``backward`` then the gradients of mean and variance.
    """
    operator = kernel.forward if which == "forward" else kernel.backward
    forward_mode = in_forward_mode()
    if forward_mode or transforming():
        if torch.compiler.is_compiling():
            # torch.compile traces no autograd function inside a transform; the PyTorch code it can trace.
            return kernel.formula(which, params)(*tensors)
        found = None if forward_mode or _cleared is None else _without_transforms(operator, params, tensors)
        return _Transformable.apply(_Call(which, kernel, params), *tensors) if found is None else found  # type: ignore[no-untyped-call]
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return _Plain.apply(_Call(which, kernel, params), *tensors)  # type: ignore[no-any-return,no-untyped-call]
    return operator(*tensors, params)


def _without_transforms(operator: Any, params: Scalars, tensors: Sequence[Tensor]) -> Outputs | None:
    """The operator of the values that transforms have wrapped; None if one of them takes a derivative by these.

    At most one ``vmap`` may be among the transforms, and no forward mode: its values wear no mark.
    """
    if any(layer.key() not in _REVERSE_AND_VMAP for layer in _functorch.get_interpreter_stack() or ()):
        return None
    # A wrapper of a transform that has ended has no level, whatever it holds.
    values = [_functorch.unwrap_if_dead(tensor) for tensor in tensors]
    dims = cast(list[int | None], [None] * len(values))
    mapped = size = 0
    while (level := max(map(_functorch.maybe_get_level, values))) > 0:
        for place, value in enumerate(values):
            if _functorch.maybe_get_level(value) < level:
                continue
            if _functorch.is_batchedtensor(value) and mapped in (0, level):
                values[place], dims[place] = _functorch._unwrap_batched(value, level)
                mapped, size = level, values[place].shape[cast(int, dims[place])]
            elif _functorch.is_gradtrackingtensor(value) and not value.requires_grad:
                values[place] = _functorch._unwrap_for_grad(value, level)
            else:
                return None
            values[place] = _functorch.unwrap_if_dead(values[place])
    if torch.is_grad_enabled() and any(value.requires_grad for value in values):
        return None
    with _cleared():
        outputs: Outputs = operator(*(batch_first(size, dims, values) if mapped else values), params)
    if mapped:
        outputs = tuple([_functorch._add_batch_dim(output, 0, mapped) for output in outputs])
    return outputs


class _Plain(torch.autograd.Function):
    """A call of an operator, or a derivative of the PyTorch code, in plain autograd."""

    @staticmethod
    def forward(ctx: Any, call: _Differentiable, *tensors: Tensor) -> Outputs:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return call.computed(tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *ctx.call.pulled_back(ctx.saved_tensors, grads)


class _Transformable(torch.autograd.Function):
    """The same under ``torch.func`` and forward-mode differentiation."""

    generate_vmap_rule = False

    @staticmethod
    def forward(call: _Differentiable, *tensors: Tensor) -> Outputs:
        return call.computed(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *ctx.call.pulled_back(ctx.saved_tensors, grads)

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: _Differentiable, *tensors: Tensor) -> Any:
        outputs = call.differentiable(batch_first(info.batch_size, in_dims[1:], tensors))
        return outputs, (0,) * len(outputs)

    @staticmethod
    def jvp(ctx: Any, _call: None, *tangents: Tensor | None) -> Outputs:
        # torch turns forward mode off in here, and the outer of two nested jvps would be silently zero.
        with forward_ad._set_fwd_grad_enabled(True):
            return ctx.call.pushed_forward(_primals(ctx.saved_tensors), tangents)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Call:
    """An operator of a kernel with its parameters."""

    which: str
    kernel: Kernel
    params: Scalars

    def computed(self, tensors: Sequence[Tensor]) -> Outputs:
        """Its outputs, without a derivative."""
        operator = self.kernel.forward if self.which == "forward" else self.kernel.backward
        return operator(*tensors, self.params)

    def differentiable(self, tensors: Sequence[Tensor]) -> Outputs:
        """Its outputs, differentiable again."""
        return differentiable(self.which, self.kernel, self.params, tensors)

    def pulled_back(self, tensors: Sequence[Tensor], grads: Sequence[Tensor]) -> Outputs:
        """Gradients of the tensors, by those of the outputs."""
        if self.which == "forward":
            return differentiable("backward", self.kernel, self.params, (*tensors, *grads))
        return _elementwise(_Pullback(self.kernel.formula("backward", self.params), len(tensors)), (*tensors, *grads))

    def pushed_forward(self, tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Outputs:
        """Derivatives of the outputs in these directions."""
        if self.which == "backward":
            formula = self.kernel.formula("backward", self.params)
            push = _Pushforward(formula, len(tensors), len(self.kernel.inputs))
            return _elementwise(push, (*tensors, *_directions(tensors, tangents)))
        one, zero = torch.ones_like(tensors[0]), torch.zeros_like(tensors[0])
        return tuple(
            _dot(differentiable("backward", self.kernel, self.params, (*tensors, *seeds)), tangents)
            for seeds in ((one, zero), (zero, one))
        )


class _Elementwise:
    """A derivative of the PyTorch code, computed slice by slice."""

    outputs: int

    def __call__(self, *tensors: Tensor) -> Outputs:
        """In a form that torch can differentiate again."""
        raise NotImplementedError

    def values(self, *tensors: Tensor) -> Outputs:
        """Without a derivative of its own."""
        return self(*tensors)

    def computed(self, tensors: Sequence[Tensor]) -> Outputs:
        return in_slices(self.values, in_one_layout(tensors), self.outputs, DERIVATIVES)

    def differentiable(self, tensors: Sequence[Tensor]) -> Outputs:
        return _elementwise(self, tensors)

    def pulled_back(self, tensors: Sequence[Tensor], grads: Sequence[Tensor]) -> Outputs:
        return _elementwise(_Pullback(self, len(tensors)), (*tensors, *grads))

    def pushed_forward(self, tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Outputs:
        push = _Pushforward(self, len(tensors), self.outputs)
        return _elementwise(push, (*tensors, *_directions(tensors, tangents)))


_Differentiable = _Call | _Elementwise


@dataclass(frozen=True)
class _Pullback(_Elementwise):
    """Of an elementwise function of ``inputs`` tensors: (they, gradients of the outputs) -> their gradients."""

    function: Callable[..., Outputs]
    inputs: int

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.inputs

    def __call__(self, *tensors: Tensor) -> Outputs:
        _, pull = _vjp(self.function, tensors[: self.inputs])
        return pull(tensors[self.inputs :])

    def values(self, *tensors: Tensor) -> Outputs:
        """Plain autograd has less to do for each operation than a transform."""
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in tensors[: self.inputs]]
            results = self.function(*leaves)
            pairs = [pair for pair in zip(results, tensors[self.inputs :], strict=True) if pair[0].requires_grad]
            if not pairs:
                return tuple([torch.zeros_like(leaf) for leaf in leaves])
            outputs, gradients = zip(*pairs, strict=True)
            return torch.autograd.grad(outputs, leaves, gradients, allow_unused=True, materialize_grads=True)


@dataclass(frozen=True)
class _Pushforward(_Elementwise):
    """Of an elementwise function of ``inputs`` tensors: (inputs, their directions) -> derivatives of the outputs."""

    function: Callable[..., Outputs]
    inputs: int
    outputs: int

    def __call__(self, *tensors: Tensor) -> Outputs:
        results, pull = _vjp(self.function, tensors[: self.inputs])
        # The pullback is linear; pulling back through it pushes forward.  Reverse mode only, so it nests anywhere.
        _, push = _vjp(lambda *grads: pull(grads), [torch.zeros_like(result) for result in results])
        return push(tensors[self.inputs :])


def _elementwise(derivative: _Elementwise, tensors: Sequence[Tensor]) -> Outputs:
    """A derivative of the PyTorch code, slice by slice, itself differentiable."""
    if transformed():
        if torch.compiler.is_compiling():
            return derivative(*tensors)
        return _Transformable.apply(derivative, *tensors)  # type: ignore[no-any-return,no-untyped-call]
    return _Plain.apply(derivative, *tensors)  # type: ignore[no-any-return,no-untyped-call]


def _vjp(function: Callable[..., Outputs], tensors: Sequence[Tensor]) -> tuple[Outputs, Callable[[Outputs], Outputs]]:
    result: Any = torch.func.vjp(function, *tensors)
    outputs, pull = result
    return outputs, pull


def _primals(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Without their tangents at this level; those of outer levels stay."""
    unpack: Any = forward_ad.unpack_dual
    return [unpack(tensor).primal for tensor in tensors]


def _directions(tensors: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor]:
    return [torch.zeros_like(x) if t is None else t for x, t in zip(tensors, tangents, strict=True)]


def _dot(gradients: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor:
    terms = [g * t for g, t in zip(gradients, tangents, strict=True) if t is not None]
    return sum(terms[1:], start=terms[0]) if terms else torch.zeros_like(gradients[0])

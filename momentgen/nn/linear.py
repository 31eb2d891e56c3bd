"""Linear layers, Bilinear and embeddings: affine in their input, so exact for independent inputs."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from momentgen.errors import InputError
from momentgen.nn.layer import Layer, as_moments, certain, draw, is_certain, known, transforming
from momentgen.nn.method import current_method
from momentgen.runtime import Moments

__all__ = ["Bilinear", "Embedding", "EmbeddingBag", "Linear", "bilinear", "linear", "one_input"]


def linear(x: Moments, weight: Tensor, bias: Tensor | None = None) -> Moments:
    """Mean ``W m + b``, variance ``(W∘W) v`` (Shekhovtsov & Flach 2018, (7a), (7b)).

    Args:
        x: shape ``(*, in_features)``.
        weight: shape ``(out_features, in_features)``.
        bias: shape ``(out_features,)``.

    Where the variance is one number expanded, over the batch or the features, it is multiplied once.

    Raises:
        InputError: if the last dimension is not ``in_features``.
    """
    if x.mean.shape[-1:] != weight.shape[-1:]:
        raise InputError(f"linear: expected (..., {weight.shape[-1]}), got {tuple(x.mean.shape)}")
    mean = F.linear(x.mean, weight, bias)
    if is_certain(x):
        return certain(mean)
    var = x.var
    shape = (*var.shape[:-1], weight.shape[0])
    for dim in range(var.dim() - 1):
        if var.stride(dim) == 0 and var.shape[dim] > 1:
            var = var.narrow(dim, 0, 1)
    if var.stride(-1) == 0 and var.shape[-1] > 1:
        return known(mean, (var[..., :1] * weight.square().sum(dim=1)).to(mean.dtype).expand(shape))
    return known(mean, square_linear(var, weight).expand(shape))


def square_linear(var: Tensor, weight: Tensor) -> Tensor:
    """``var @ (weight∘weight)ᵀ``; its gradient in the weight takes one pass over it, where autograd's takes four."""
    if _transformed() or not torch.is_grad_enabled() or torch.is_autocast_enabled(var.device.type):
        return F.linear(var, weight.square())
    return cast(Tensor, _SquareLinear.apply(var, weight))


def _transformed() -> bool:
    """Whether ``torch.func`` or forward-mode differentiation is at work, which the functions below are not made for."""
    return transforming() or getattr(forward_ad, "_current_level", 0) >= 0


class _SquareLinear(torch.autograd.Function):
    """See :func:`square_linear`; the squares are kept, for to make them anew takes longer."""

    @staticmethod
    def forward(ctx: Any, var: Tensor, weight: Tensor) -> Tensor:
        squares = weight.square()
        ctx.save_for_backward(var, weight, squares)
        return F.linear(var, squares)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        var, weight, squares = ctx.saved_tensors
        of_var = of_weight = None
        if ctx.needs_input_grad[0]:
            of_var = grads[0] @ (weight.square() if torch.is_grad_enabled() else squares)
        if ctx.needs_input_grad[1]:
            doubled, flat = (2 * grads[0]).reshape(-1, weight.shape[0]), var.reshape(-1, weight.shape[1])
            # An outer product is a slow matrix product.
            product = doubled.t() @ flat if len(flat) > 1 else torch.outer(doubled[0], flat[0])
            of_weight = product * weight
        return of_var, of_weight


class _OneInput(torch.autograd.Function):
    """``W m`` and ``(W∘W) v`` of one input; its gradient in W, of rank two, is made in one array the size of W."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        squares = weight.square()
        ctx.save_for_backward(mean, var, weight, squares)
        return torch.mv(weight, mean), torch.mv(squares, var)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        mean, var, weight, squares = ctx.saved_tensors
        again = torch.is_grad_enabled()  # to be differentiated again
        squares = weight.square() if again else squares
        of_mean = torch.mv(weight.t(), grads[0]) if ctx.needs_input_grad[0] else None
        of_var = torch.mv(squares.t(), grads[1]) if ctx.needs_input_grad[1] else None
        scaled, doubled = weight * var, (2 * grads[1])[:, None]
        if again:
            return of_mean, of_var, torch.addr(scaled * doubled, grads[0], mean)
        return of_mean, of_var, scaled.mul_(doubled).addr_(grads[0], mean)


def one_input(mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor | None) -> Moments:
    """:func:`linear` of one input, shape ``(in_features,)``: what statistics of a data set are."""
    if _transformed():
        mean, var = torch.mv(weight, mean), torch.mv(weight.square(), var)
    else:
        mean, var = _OneInput.apply(mean, var, weight)
    return known(mean if bias is None else mean + bias, var)


class Linear(Layer, torch.nn.Linear):
    """:class:`torch.nn.Linear` over moments.

    >>> import torch
    >>> from momentgen import Moments
    >>> layer = Linear(2, 1, bias=False)
    >>> layer.weight.data = torch.tensor([[3.0, -1.0]])
    >>> layer(Moments(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]))).var.tolist()
    [[13.0]]
    """

    def moments(self, x: Moments) -> Moments:
        return self.affine(x, self.weight, self.bias)

    def affine(self, x: Moments, weight: Tensor, bias: Tensor | None) -> Moments:
        """The layer with another weight and bias."""
        return linear(x, weight, bias)

    def statistics(self, x: Moments) -> Moments:
        # After a Flatten every channel fills in_features / C inputs.
        copies, rest = divmod(self.in_features, x.mean.shape[0])
        if rest:
            raise InputError(f"Linear: {self.in_features} input features do not come from {x.mean.shape[0]} channels")
        if copies == 1:
            return one_input(x.mean, x.var, self.weight, self.bias)
        weight = self.weight.reshape(self.out_features, -1, copies)  # torch.compile cannot trace unflatten here
        return known(F.linear(x.mean, weight.sum(2), self.bias), F.linear(x.var, weight.square().sum(2)))


def bilinear(x1: Moments, x2: Moments, weight: Tensor, bias: Tensor | None = None) -> Moments:
    """``y_k = x1ᵀ A_k x2 + b_k`` for independent inputs; exact.

    Var y_k = Σ_i v1_i (A_k m2)_i² + Σ_j v2_j (A_kᵀ m1)_j² + Σ_ij A_kij² v1_i v2_j, all terms non-negative.

    Args:
        x1: shape ``(*, in1_features)``.
        x2: shape ``(*, in2_features)``.
        weight: shape ``(out_features, in1_features, in2_features)``.
        bias: shape ``(out_features,)``.
    """
    mean = F.bilinear(x1.mean, x2.mean, weight, bias)
    of_first = torch.einsum("kij,...j->...ki", weight, x2.mean).square()
    of_second = torch.einsum("kij,...i->...kj", weight, x1.mean).square()
    var = (
        torch.einsum("...ki,...i->...k", of_first, x1.var)
        + torch.einsum("...kj,...j->...k", of_second, x2.var)
        + F.bilinear(x1.var, x2.var, weight.square())
    )
    return known(mean, var)


class Bilinear(Layer, torch.nn.Bilinear):
    """:class:`torch.nn.Bilinear` over moments of two independent inputs."""

    arity = 2

    def moments(self, x1: Moments, x2: Moments) -> Moments:
        return bilinear(x1, x2, self.weight, self.bias)


class Embedding(Layer, torch.nn.Embedding):
    """:class:`torch.nn.Embedding`: indices are certain, and so are the rows they pick."""

    def propagate(self, indices: Tensor) -> Moments:
        return certain(self.plain(indices))

    forward: Any = propagate


class EmbeddingBag(Layer, torch.nn.EmbeddingBag):
    """:class:`torch.nn.EmbeddingBag`: indices are certain, and so are the rows they pick.

    The weights of the samples, which the mode ``sum`` takes, may be random: Σ w e has variance Σ v e².
    """

    def propagate(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Moments | Tensor | None = None
    ) -> Moments:
        if not isinstance(per_sample_weights, Moments):
            return certain(self.plain(input, offsets, per_sample_weights))
        weights = as_moments(self, per_sample_weights)
        method = current_method(self.propagation)
        if method != "ap2" or is_certain(weights):
            return certain(self.plain(input, offsets, draw(weights) if method == "sample" else weights.mean))
        mean = self.plain(input, offsets, weights.mean)
        var = F.embedding_bag(
            input,
            self.weight.square(),
            offsets,
            mode="sum",
            per_sample_weights=weights.var,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )
        return known(mean, var)

    forward: Any = propagate

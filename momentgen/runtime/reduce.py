"""Ops over an axis: the softmax of normal logits, from the score terms that the compiler emitted.

The terms are computed in float64 and the result is rounded once: a score may be a sum of a thousand logarithms of
tails.  Pairs of classes are taken in slices, so that memory does not grow with the square of their number.  The
backward pass computes again what autograd would save of a slice.  Slices of a few MiB stay in caches.  Checkpoints,
for second derivatives and transforms, take larger ones, whose memory goes back to the system.
"""

from __future__ import annotations

import functools
import importlib
import numbers
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from momentgen.errors import InputError, MomentgenError
from momentgen.runtime.autograd import transformed
from momentgen.runtime.described import Generated
from momentgen.runtime.inputs import alike, reconciled
from momentgen.runtime.moments import Moments

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["Reduction"]

#: pairs of classes taken at a time: on the CPU 2 MiB in float64; else, and in a checkpoint, 64
_SLICE, _LARGE_SLICE = 1 << 18, 1 << 23

_DOC = """{what} of independent logits X ~ N(mean, var), over an axis.

Args:
    mean, var: float32, float64, bfloat16 or float16 tensors of one shape, dtype and device; ``var`` is a *variance*.
    dim: the axis of the classes.
    variant: {variants}.

Returns:
    {returns}

    Computed in float64 and rounded once; differentiable in both.  NaN where an input of the same row is NaN or a
    variance is negative.

Accuracy:
{accuracy}
Raises:
    InputError: for inputs that differ in shape, dtype or device, are not floating point, or have no such axis.
"""


class Reduction(Generated):
    """A softmax or log-softmax of moments, as a callable; generated packages make them.

    Args:
        name: the rule.
        package: name of the generated package, which holds the score terms.
        variants: names of the variants.
        default: the variant used when none is asked for.
        log: whether log-probabilities are returned.
        doc: one line for the documentation.
    """

    def __init__(
        self, name: str, package: str, variants: tuple[str, ...], default: str, log: bool = False, doc: str = ""
    ) -> None:
        super().__init__(name, package, variants, default, doc)
        self.log = log

    def __call__(
        self, mean: Float[Tensor, "*shape"], var: Float[Tensor, "*#shape"], *, dim: int = -1, variant: str | None = None
    ) -> Any:
        """See the op's own documentation, ``help(op)``."""
        variant = self._chosen(variant)
        mean, var, dim = self._check(mean, var, dim)
        m, v = (t.to(torch.float64).movedim(dim, -1) for t in (mean, var))
        v = torch.where(v >= 0, v, torch.full_like(v, torch.nan))
        log_p = torch.log_softmax(_scores(self._module(variant), m, v), -1)
        if self.log:
            return log_p.movedim(-1, dim).to(mean.dtype)
        p = torch.exp(log_p)
        # 1 - p as the sum of the others, which does not cancel.
        spread = p * -torch.expm1(log_p)
        return Moments(p.movedim(-1, dim).to(mean.dtype), spread.movedim(-1, dim).to(mean.dtype))

    def _check(self, mean: Any, var: Any, dim: Any) -> tuple[Tensor, Tensor, int]:
        if not alike((mean, var)):
            mean, var = reconciled(self.name, ("mean", "var"), (mean, var))
        if isinstance(dim, bool) or not isinstance(dim, numbers.Integral):
            raise InputError(f"{self.name}: expected a whole number for dim, got {type(dim).__name__}")
        if not -mean.dim() <= dim < mean.dim():
            raise InputError(f"{self.name}: expected an axis of a tensor of {mean.dim()} dimensions, got dim = {dim}")
        return mean, var, int(dim)

    def _describe(self) -> str:
        return _DOC.format(
            what="Log-probabilities of the softmax" if self.log else "Class probabilities, the expected softmax",
            variants=self._variants_in_words(),
            returns="a tensor of log-probabilities, of the shape and dtype of ``mean``."
            if self.log
            else ":class:`~momentgen.Moments` of the one-hot class: probabilities p, and p(1 - p).",
            accuracy=self._accuracy_in_words(),
        )

    def _module(self, variant: str) -> ModuleType:
        return _load(self.name, f"{self.package}.{variant}_torch")

    def __repr__(self) -> str:
        return f"<op {self.package}.{self.name}(mean, var, *, dim=-1, variant={self.default!r})>"


@functools.cache
def _load(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except ImportError as error:
        raise MomentgenError(f"{name}: the PyTorch code does not load: {error}") from error


def _scores(module: ModuleType, mean: Tensor, var: Tensor) -> Tensor:
    """The score of every class, over the last axis."""
    if module.REDUCE == "none":
        scores: Tensor = module.term(mean, var)
        return scores
    if torch.compiler.is_compiling() or transformed():
        return _checkpointed(module, mean, var)
    if mean.numel() * mean.shape[-1] <= _slice_on(mean):
        return _reduced(module, mean, var, mean, var)
    return _Scores.apply(module, mean, var)  # type: ignore[no-any-return,no-untyped-call]


def _slice_on(tensor: Tensor) -> int:
    return _SLICE if tensor.device.type == "cpu" else _LARGE_SLICE


def _reduced(module: ModuleType, own_mean: Tensor, own_var: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """The scores of some classes against all."""
    terms = module.term(own_mean.unsqueeze(-1), own_var.unsqueeze(-1), mean.unsqueeze(-2), var.unsqueeze(-2))
    scores: Tensor = terms.sum(-1) if module.REDUCE == "sum" else -torch.logsumexp(terms, -1)
    return scores


def _checkpointed(module: ModuleType, mean: Tensor, var: Tensor) -> Tensor:
    """The scores in a form that torch can differentiate again and transform."""
    classes = mean.shape[-1]
    step = max(1, _LARGE_SLICE // max(mean.numel(), 1))
    if step >= classes:
        return _reduced(module, mean, var, mean, var)
    again: Callable[..., Any] = functools.partial(checkpoint, _reduced, module, use_reentrant=False)
    slices = [slice(start, start + step) for start in range(0, classes, step)]
    return torch.cat([again(mean[..., s], var[..., s], mean, var) for s in slices], -1)


class _Scores(torch.autograd.Function):
    """The scores, slice by slice: of rows, and of classes of them."""

    @staticmethod
    def forward(ctx: Any, module: ModuleType, mean: Tensor, var: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(mean, var)
        m, v = _rows(mean), _rows(var)
        scores = torch.empty_like(m)
        for rows, some in _slices(m):
            scores[rows, some] = _reduced(module, m[rows, some], v[rows, some], m[rows], v[rows])
        return scores.view(mean.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        mean, var = ctx.saved_tensors
        if torch.is_grad_enabled():  # of a derivative that is differentiated again
            leaves = [t if t.requires_grad else t.detach().requires_grad_() for t in (mean, var)]
            again = torch.autograd.grad(_checkpointed(ctx.module, *leaves), leaves, grad, create_graph=True)
            return None, *again
        m, v, g = _rows(mean), _rows(var), _rows(grad)
        of_mean, of_var = torch.zeros_like(m), torch.zeros_like(v)
        for rows, some in _slices(m):
            with torch.enable_grad():
                parts = m[rows, some], v[rows, some], m[rows], v[rows]
                leaves = [part.detach().requires_grad_() for part in parts]
                found = torch.autograd.grad(_reduced(ctx.module, *leaves), leaves, g[rows, some])
            for total, own, other in ((of_mean, found[0], found[2]), (of_var, found[1], found[3])):
                total[rows] += other
                total[rows, some] += own
        return None, of_mean.view(mean.shape), of_var.view(var.shape)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _slices(m: Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows, and classes of them, with no more pairs than a slice has, or one row's class against all."""
    most, (rows, classes) = _slice_on(m), m.shape
    many = max(1, most // classes)
    step = max(1, most // (min(many, rows) * classes))
    for first in range(0, rows, many):
        for start in range(0, classes, step):
            yield slice(first, first + many), slice(start, start + step)

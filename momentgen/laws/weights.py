"""Random parameters of a network: the law that each method makes of a parameter's mean, variance and one drawn sample.

A Bayesian network is a plain network whose parameters are laws while it runs.  Each method says what stands for a
parameter (:mod:`momentgen.laws.methods`).  That becomes the module's attribute, which functions of torch take.
``ap2`` makes independent values of it, exact for each output of a linear map or convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, cast

import torch
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.coefficients import bind, is_linear_map, noise_of_weight
from momentgen.laws.diagonal import Diagonal, all_replaced, diagonal
from momentgen.laws.law import Law, laws_in, new_law, rule
from momentgen.laws.notes import note, unsupported
from momentgen.laws.numerics.root import square_root
from momentgen.laws.table import Entry

__all__ = [
    "ROW",
    "RUN",
    "Between",
    "Computed",
    "Local",
    "WeightOf",
    "controlled_weight",
    "drawn_weight",
    "independent_weight",
    "local",
    "once_in_a_run",
]  # fmt: skip

#: compute a tensor when it is needed, and covariances of neighbours, where elements have some
Computed = Callable[[], Tensor]
Between = Callable[[], Tensor | None]
#: what stands for a random parameter: of its mean, and functions for *variance*, covariances of neighbours, one draw
WeightOf = Callable[[Tensor, Computed, Between, Computed], Any]

#: what a method that runs row after row makes of a parameter that is drawn
ROW: Final[ContextVar[WeightOf | None]] = ContextVar("momentgen_row_weight", default=None)

#: what random parameters are in one run of the outermost network, by their owner
RUN: Final[ContextVar[dict[Any, tuple[Any, Any]] | None]] = ContextVar("momentgen_run", default=None)

#: why it cannot be written to, and why other laws do not meet a parameter of the method ``local``
_WRITTEN: Final = "a random parameter cannot be written to while the network runs"
_ON_TENSORS: Final = "under the method local a network runs on tensors"


def once_in_a_run(owner: Any, method: str, make: Callable[[], Any]) -> Any:
    """What ``make`` makes of the random parameters of ``owner``: once in a run, however often that is called in it."""
    run = None if torch.compiler.is_dynamo_compiling() else RUN.get()
    if run is None:
        return make()
    key = id(owner), method
    if key not in run:
        run[key] = owner, make()  # the owner is held, so that its identity stays its own
    return run[key][1]


def drawn_weight(mean: Tensor, var: Computed, neighbour: Between, draw: Computed) -> Any:
    """A draw of a random parameter: ``draw()``, or what a method that runs row after row makes of it.

    Args:
        mean: of the parameter.
        var: computes *variances*, of the mean's shape.
        neighbour: computes the covariance of each element with the next one, shape ``(K - 1,)``, or says None.
        draw: one sample.
    """
    weight = None if torch.compiler.is_dynamo_compiling() else ROW.get()
    return draw() if weight is None else weight(mean, var, neighbour, draw)


def controlled_weight(*_: Any) -> Any:
    """What ``controlled`` says where no network draws row after row."""
    raise InputError(
        "random_weight: no network propagates by 'controlled' here; call the network itself, with moments or tensors"
    )


def _checked(mean: Tensor, var: Tensor) -> Tensor:
    """The variances.

    Raises:
        InputError: if they have another shape than the mean.
    """
    if mean.shape != var.shape:
        raise InputError(f"random_weight: mean of shape {tuple(mean.shape)} and variance of {tuple(var.shape)}")
    return var


def independent_weight(mean: Tensor, var: Computed, neighbour: Between, _: Any = None) -> Diagonal:
    """Independent elements, of half precision in float32; see :func:`drawn_weight` for the arguments.

    >>> mean, var = torch.ones(1, 2), torch.full((1, 2), 0.5)
    >>> weight = independent_weight(mean, lambda: var, lambda: None)
    >>> torch.nn.functional.linear(torch.tensor([[1.0, 2.0]]), weight).moments().var
    tensor([[2.5000]])
    """
    if neighbour() is not None:
        note(
            "ap2: neighbouring elements of a parameter are correlated, and taken as independent; controlled draws them"
        )
    return diagonal(mean, _checked(mean, var()))


class Local(Law):
    """A random parameter of the method ``local``: mean and variance, and how it is drawn.

    Outputs of linear maps are drawn, in place of the weight (Kingma, Salimans & Welling 2015, Variational dropout and
    the local reparameterisation trick).  Then each output of a linear map or convolution is drawn by itself from its
    mean and variance given the input.  The gradient varies less than with one drawn weight for the whole batch.  Every
    example, and every place of a convolution or sequence, has noise of its own.  All other functions take one sample of
    the parameter, drawn once per run.  If that is a matrix first used within a checkpoint, torch complains that the
    second run of the checkpoint saved other tensors.
    """

    __slots__ = ("draw", "sample")
    RANK = 5
    FIXED = _WRITTEN, _ON_TENSORS
    draw: Callable[[], Tensor]
    sample: Tensor | None

    def drawn(self) -> Tensor:
        """The sample of this run."""
        if self.sample is None:
            self.sample = self.draw()
        return self.sample


def local(mean: Tensor, var: Computed, neighbour: Between, draw: Computed) -> Local | Tensor:
    """A random parameter; one draw where neighbours are correlated; see :func:`drawn_weight` for the arguments."""
    if neighbour() is not None:
        return draw()
    law: Local = new_law(Local, mean, _checked(mean, var()))
    # What norms take is drawn here and now: a checkpoint's second run must find the random numbers of its first.
    law.sample, law.draw = draw() if mean.dim() < 2 else None, draw
    return law


@rule(Local, "*")
def _rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for law in laws_in((*args, *kwargs.values())):
        if not isinstance(law, Local):
            raise unsupported(entry, law, _ON_TENSORS)
    if is_linear_map(entry.name) and not isinstance(args[0], Local):
        return _drawn_output(entry, args, kwargs)
    values, named = all_replaced(args, kwargs, lambda law: cast(Local, law).drawn())
    return entry.call(*values, **named)


def _drawn_output(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A linear map or convolution: one draw of each output."""
    x, bound = args[0], bind(entry.name, args[1:], kwargs)
    weight, bias = bound.pop("weight"), bound.pop("bias", None)
    means = [part._mean if isinstance(part, Local) else part for part in (weight, bias)]
    mean: Tensor = entry.call(x, *means, **bound)
    var: Tensor | None = None
    if isinstance(weight, Local):
        var = noise_of_weight(entry.call, x, None, weight._var, bound)
    if isinstance(bias, Local):
        own = bias._var if entry.name == "linear" else bias._var.view([-1] + [1] * int(entry.name[-2]))
        var = own.expand(mean.shape) if var is None else var + own
    noise = torch.randn_like(mean)
    return mean + square_root(cast(Tensor, var)).to(mean.dtype) * noise

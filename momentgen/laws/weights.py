"""Random parameters of a network: the law that each method makes of a parameter's mean, variance and one drawn sample.

A Bayesian network is a plain network whose parameters are laws while it runs.  Each method says what stands for a
parameter (:mod:`momentgen.laws.methods`).  That becomes the module's attribute, which functions of torch take.
``ap2`` makes independent values of it.  Where neighbours have covariances it is a :class:`Weight`.  Linear maps and
convolutions take it with these covariances, exact for each output.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.errors import InputError
from momentgen.laws.diagonal import Diagonal, all_replaced, diagonal
from momentgen.laws.law import Law, Rule, laws_in, new_law, rule, rule_of
from momentgen.laws.notes import note, unsupported
from momentgen.laws.numerics.root import square_root
from momentgen.laws.rules.linear import bind, is_linear_map, noise_of_weight
from momentgen.laws.table import Entry, names
from momentgen.runtime.inputs import HALVES

#: compute a tensor when it is needed, and covariances of neighbours, where elements have some
Computed = Callable[[], Tensor]
Between = Callable[[], Tensor | None]
#: what stands for a random parameter: of its mean, and functions for *variance*, covariances of neighbours, one draw
WeightOf = Callable[[Tensor, Computed, Between, Computed], Any]

#: what a method that runs row after row makes of a parameter that is drawn
ROW: Final[ContextVar[WeightOf | None]] = ContextVar("momentgen_row_weight", default=None)

#: what random parameters are in one run of the outermost network, by their owner
RUN: Final[ContextVar[dict[Any, tuple[Any, Any]] | None]] = ContextVar("momentgen_run", default=None)

#: why a function of a parameter with covariances of neighbours has no rule
_LOST: Final = (
    "the covariance of its neighbouring elements would be lost; linear maps and convolutions have rules for it, for "
    "other uses give this parameter a mean-field posterior, or use the method sample or local"
)

#: why it cannot be written to, and why other laws do not meet a parameter of the method ``local``
_WRITTEN: Final = "a random parameter cannot be written to while the network runs"
_ON_TENSORS: Final = "under the method local a network runs on tensors"

#: functions that read one row or one value of a parameter at a time
_ONE_BY_ONE: Final = names(
    "embedding batch_norm layer_norm rms_norm group_norm instance_norm add sub rsub mul div rdiv neg"
)


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


def _checked(mean: Tensor, var: Tensor, neighbour: Tensor | None) -> Tensor | None:
    """Covariances of each element with the next one, of the mean's shape; None for independent elements.

    Raises:
        InputError: for shapes that do not fit.
    """
    if mean.shape != var.shape:
        raise InputError(f"random_weight: mean of shape {tuple(mean.shape)} and variance of {tuple(var.shape)}")
    if neighbour is None:
        return None
    if neighbour.shape != (max(mean.numel() - 1, 0),):
        raise InputError(
            f"random_weight: {mean.numel()} elements have {max(mean.numel() - 1, 0)} covariances of neighbours, "
            f"got shape {tuple(neighbour.shape)}"
        )
    return F.pad(neighbour, (0, 1)).view(mean.shape) if mean.numel() > 1 else None


def independent_weight(mean: Tensor, var: Computed, neighbour: Between, _: Any = None) -> Diagonal:
    """A law of a random parameter, of half precision in float32; see :func:`drawn_weight` for the arguments.

    >>> mean, var = torch.ones(1, 2), torch.full((1, 2), 0.5)
    >>> F.linear(torch.tensor([[1.0, 2.0]]), independent_weight(mean, lambda: var, lambda: None)).moments().var
    tensor([[2.5000]])
    >>> correlated = independent_weight(mean, lambda: var, lambda: torch.tensor([-0.25]))
    >>> F.linear(torch.tensor([[1.0, 2.0]]), correlated).moments().var
    tensor([[1.5000]])
    """
    parts = [mean, variances := var()]
    if (between := _checked(mean, variances, neighbour())) is None:
        return diagonal(*parts)
    return _weight(*(part.float() if mean.dtype in HALVES else part for part in (*parts, between)))


class Weight(Diagonal):
    """A random parameter whose neighbouring elements have covariances: ``neighbour``, of its shape.

    Element k of these is the covariance of element k with the next one in flattened order.  Linear maps and
    convolutions take it into account.  Functions of each value by itself see mean and variance, as of every
    ``Diagonal``.  All other functions would lose it silently, and are refused.
    """

    __slots__ = ("neighbour",)
    RANK = 2
    FIXED = _WRITTEN, _LOST
    neighbour: Tensor

    def _like(self, *parts: Tensor) -> Law:
        return diagonal(*parts)


def _weight(mean: Tensor, var: Tensor, neighbour: Tensor) -> Weight:
    law: Weight = new_law(Weight, mean, var)
    law._noise, law.neighbour = Diagonal, neighbour
    return law


#: functions that keep the elements of one output in their order
_KEPT = names("to float double half bfloat16 type type_as detach data clone contiguous requires_grad_")
#: functions that choose among outputs, the first dimension, where their dimension is 0
_CHOICES = names("chunk split split_with_sizes tensor_split narrow index_select select")


@rule(Weight, "query", "refusal", "creation", "composite", *_ONE_BY_ONE, "linear", *(f"conv{d}d" for d in (1, 2, 3)))
def _as_diagonal(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Linear maps of which it is the weight or bias; functions of the form, of rows, or of each value by itself."""
    if is_linear_map(entry.name) and isinstance(args[0], Weight):
        return refused(entry, args, kwargs)
    if entry.name in _ONE_BY_ONE and max(law.ndim for law in _weights(args, kwargs)) > 1:
        note("the covariance of a parameter's neighbouring elements counts in linear maps and convolutions only")
    return cast(Rule, rule_of(Diagonal, entry.name, entry.kind))(entry, args, kwargs)


@rule(Weight, "getitem", *_KEPT, *_CHOICES)
def _movement(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    law = args[0]
    if not isinstance(law, Weight) or not _keeps_rows(entry, args, kwargs):
        return refused(entry, args, kwargs)
    mean, var, neighbour = (entry.call(part, *args[1:], **kwargs) for part in (*law._parts(), law.neighbour))
    if isinstance(mean, Tensor):
        return _weight(mean, var, neighbour)
    return tuple(_weight(*parts) for parts in zip(mean, var, neighbour, strict=True))


def _keeps_rows(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a movement keeps the elements of one output, all beyond the first dimension, together in their order."""
    if entry.name in _KEPT:
        return True
    if args[0].ndim < 2:
        return False
    if entry.name == "getitem":
        index = args[1]
        if isinstance(index, Tensor):  # True, or one of more dimensions, joins rows or takes them apart
            return index.dim() == 1 or (index.dim() == 0 and index.dtype is not torch.bool)
        return isinstance(index, slice) or (isinstance(index, int) and not isinstance(index, bool))
    # torch's order of arguments: the dimension stands first in select, narrow and index_select.
    first = entry.name in ("select", "narrow", "index_select")
    return bool(kwargs.get("dim", args[1] if first and len(args) > 1 else args[2] if len(args) > 2 else 0) == 0)


def _weights(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Weight]:
    return [law for law in laws_in((*args, *kwargs.values())) if isinstance(law, Weight)]


@rule(Weight, "*")
def refused(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The rule of all functions that would lose the covariances."""
    raise unsupported(entry, _weights(args, kwargs)[0], _LOST)


class Local(Law):
    """A random parameter of the method ``local``: mean and variance; covariances of neighbours; how it is drawn.

    Outputs of linear maps are drawn, in place of the weight (Kingma, Salimans & Welling 2015, Variational dropout and
    the local reparameterisation trick).  Then each output of a linear map or convolution is drawn by itself from its
    mean and variance given the input.  The gradient varies less than with one drawn weight for the whole batch.  Every
    example, and every place of a convolution or sequence, has noise of its own.  All other functions take one sample of
    the parameter, drawn once per run.  If that is a matrix first used within a checkpoint, torch complains that the
    second run of the checkpoint saved other tensors.
    """

    __slots__ = ("draw", "neighbour", "sample")
    RANK = 5
    FIXED = _WRITTEN, _ON_TENSORS
    draw: Callable[[], Tensor]
    neighbour: Tensor | None
    sample: Tensor | None

    def drawn(self) -> Tensor:
        """The sample of this run."""
        if self.sample is None:
            self.sample = self.draw()
        return self.sample


def local(mean: Tensor, var: Computed, neighbour: Between, draw: Computed) -> Local:
    """A random parameter; see :func:`drawn_weight` for the arguments."""
    law: Local = new_law(Local, mean, var())
    # What norms take is drawn here and now: a checkpoint's second run must find the random numbers of its first.
    law.sample = draw() if mean.dim() < 2 else None
    law.neighbour, law.draw = _checked(mean, law._var, neighbour()), draw
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
        var = noise_of_weight(entry.call, entry.name, x, None, weight._var, weight.neighbour, bound)
    if isinstance(bias, Local):
        own = bias._var if entry.name == "linear" else bias._var.view([-1] + [1] * int(entry.name[-2]))
        var = own.expand(mean.shape) if var is None else var + own
    noise = torch.randn_like(mean)
    return mean + square_root(cast(Tensor, var)).to(mean.dtype) * noise

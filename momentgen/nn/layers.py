"""The layers of torch.nn behind the border, and those that torch has not: one class per name, over torch's own.

A layer takes a tensor or :class:`~momentgen.Moments` and returns moments; inside a network it is torch's layer.

Units are random by themselves: injected noise, Bernoulli units (sigmoid belief networks), bow tie units.  Their noise
belongs to the model: it is there in training and in evaluation.
"""

from __future__ import annotations

import functools
import math
import numbers
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

import momentgen.generated
from momentgen.errors import InputError
from momentgen.laws.activations import ACTIVATIONS, Activation
from momentgen.laws.border import Border
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.dispatch import dispatch
from momentgen.laws.law import Law
from momentgen.laws.rules import noise
from momentgen.laws.table import names
from momentgen.laws.values import as_moments
from momentgen.runtime import Moments, Op
from momentgen.runtime.inputs import DTYPES

_DIMENSIONS = names(
    "Conv ConvTranspose BatchNorm InstanceNorm AvgPool MaxPool AdaptiveAvgPool AdaptiveMaxPool ConstantPad "
    "ZeroPad ReflectionPad ReplicationPad CircularPad"
)
#: classes of torch.nn that stand behind the border under their own names, besides the activations
_TORCHS: tuple[str, ...] = (
    *(f"{stem}{d}d" for stem in _DIMENSIONS for d in (1, 2, 3)),
    *names(
        "Linear Embedding EmbeddingBag Identity Flatten Unflatten Unfold Fold ChannelShuffle PixelShuffle "
        "PixelUnshuffle Upsample UpsamplingBilinear2d UpsamplingNearest2d Dropout Dropout1d Dropout2d Dropout3d "
        "AlphaDropout FeatureAlphaDropout RReLU PReLU GLU LayerNorm GroupNorm RMSNorm Softmax Softmax2d Softmin "
        "LogSoftmax MultiheadAttention Transformer TransformerEncoder "
        "TransformerEncoderLayer TransformerDecoder TransformerDecoderLayer"
    ),
)


class Module(Border, torch.nn.Module):
    """Base of networks written by hand: what ``torch.nn.Module`` is, behind the border.

    ``forward`` runs on laws, which take everything that a tensor does: ``x + y``, ``torch.relu(x)``, ``x.view(...)``.

    >>> class Residual(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc = torch.nn.Linear(2, 2)
    ...
    ...     def forward(self, x):
    ...         return x + torch.relu(self.fc(x))
    >>> Residual()(torch.zeros(1, 2)).mean.shape
    torch.Size([1, 2])
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward`` on laws of the arguments."""
        return self._cross_border(super().__call__, args, kwargs)


class Sequential(Border, torch.nn.Sequential):
    """:class:`torch.nn.Sequential` over moments."""


class Layer(Border):
    """What the layers share: the first input is one value.  A layer that is called by itself has ``ap2`` as default."""

    DEFAULT = "ap2"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Moments of the output, by the method in force.

        Raises:
            InputError: if the first input is neither a tensor nor moments.
        """
        if args and not isinstance(args[0], Tensor | Moments | Law):
            as_moments(self, args[0])
        return self._cross_border(self._forward_inside, args, kwargs)


def check_strided(layer: Layer, x: Any) -> None:
    """Check the input of a layer that torch has not: a strided tensor, or law, of floating point.

    Raises:
        InputError: if it is another.
    """
    if x.dtype not in DTYPES or x.layout is not torch.strided:
        what = f"{x.dtype}, {x.layout}"
        raise InputError(f"{type(layer).__name__}: expected a strided input of floating point, got {what}")


class ActivationLayer(Layer):
    """What the activations share.

    Attributes:
        row: the layer's row of :data:`~momentgen.laws.ACTIVATIONS`.
        variant: variant of the op; None for its default.  See :func:`set_variant`.
    """

    row: Activation
    variant: str | None = None

    def op(self) -> Op:
        """The generated op that serves this layer."""
        name = self.row.alternatives.get(getattr(self, "approximate", None), self.row.op)
        return cast(Op, getattr(momentgen.generated, name))

    def variants(self) -> tuple[str, ...]:
        """Names of the op's variants."""
        return tuple(self.op().variants)

    def _forward_inside(self, *args: Any, **kwargs: Any) -> Any:
        """Torch's own forward; with a variant, the op's."""
        if self.variant is not None and hasattr(args[0], "by_moments"):
            params: Any = {word: float(getattr(self, word)) for word in self.row.parameters}
            return args[0].by_moments(functools.partial(self.op(), variant=self.variant, **params))
        return super()._forward_inside(*args, **kwargs)


class MaxPoolLayer(Layer):
    """What the max pools share.

    Attributes:
        variant: ``identity_delta`` passes the unit of the largest mean on, with its *variance*; None is the maximum.
            Source: Haussmann, Hamprecht & Kandemir 2019, proposition 3.
    """

    variant: str | None = None

    def variants(self) -> tuple[str, ...]:
        """The one variant, besides the maximum."""
        return ("identity_delta",)

    def _forward_inside(self, *args: Any, **kwargs: Any) -> Any:
        """Torch's own forward, or the variant's."""
        if self.variant is not None and isinstance(args[0], Diagonal) and not getattr(self, "return_indices", False):
            return args[0].by_moments(self._of_largest_mean)
        return super()._forward_inside(*args, **kwargs)

    def _of_largest_mean(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        dims, own = int(type(self).__name__[-2]), cast(Any, self)
        pool = getattr(F, f"max_pool{dims}d")
        out, places = pool(mean, own.kernel_size, own.stride, own.padding, own.dilation, own.ceil_mode, True)
        return out, var.flatten(-dims).gather(-1, places.flatten(-dims)).view_as(out)


def set_variant(module: torch.nn.Module, variant: str | None) -> torch.nn.Module:
    """Set the variant (``exact``, ``tight``, ``fitted``, ...) of every activation in ``module`` that has it.

    Max pools have ``identity_delta``: the unit of the largest mean passes.

    Args:
        module: layers over moments, or a converted or Bayesian network whose activations are modules of torch.nn.
        variant: of the generated ops; None for their default.

    Returns:
        ``module``.

    Raises:
        InputError: if no activation in it has the variant.
    """
    converted = [network for network in module.modules() if isinstance(network, Border)]
    for part in {part for network in converted for part in network.modules()}:
        own = LAYERS.get(type(part).__name__)
        if own is not None and type(part) is getattr(torch.nn, own.__name__, None):
            part.__class__ = own  # a converted network's modules are its own
    layers = [part for part in module.modules() if isinstance(part, ActivationLayer | MaxPoolLayer)]
    having = [part for part in layers if variant is None or variant in part.variants()]
    if not having and variant is not None:
        raise InputError(f"set_variant: no activation of {type(module).__name__} has a variant {variant!r}")
    for part in having:
        part.variant = variant
    return module


def _activation(row: Activation) -> type[torch.nn.Module]:
    text = f"{row.layer} over moments, by the generated op ``{row.op}``."
    return _made(row.layer, (ActivationLayer, getattr(torch.nn, row.layer)), text, row=row)


def _layer(name: str) -> type[torch.nn.Module]:
    base = MaxPoolLayer if name.startswith("MaxPool") else Layer
    return _made(name, (base, getattr(torch.nn, name)), f":class:`torch.nn.{name}` over moments.")


def _made(name: str, bases: tuple[type, ...], text: str, **own: Any) -> type[torch.nn.Module]:
    return type(name, bases, {"__doc__": text, "__module__": __name__, "__qualname__": name, **own})


#: the layers by name
LAYERS: dict[str, type[torch.nn.Module]] = {
    **{name: _layer(name) for name in _TORCHS},
    **{row.layer: _activation(row) for row in ACTIVATIONS if hasattr(torch.nn, row.layer)},
}
globals().update(LAYERS)


_LARGEST = torch.finfo(torch.float32).max


def _number(unit: str, name: str, value: Any, low: float, high: float, expected: str) -> float:
    """A number within its range, or the error that says which is expected."""
    if not issubclass(type(value), numbers.Real):
        raise InputError(f"{unit}: expected a number for {name}, got {type(value).__name__}")
    if not low <= value <= high:
        # whole numbers may have thousands of digits
        shown = repr(value) if isinstance(value, float) or abs(value) <= _LARGEST else f"a number beyond {_LARGEST:g}"
        raise InputError(f"{unit}: {expected}, got {shown}")
    return float(value)


class _Unit(Layer, noise.Unit, torch.nn.Module):
    """A unit with a noise of its own, whose moments are those of an op."""

    op: str
    #: attributes that the op takes
    SETTINGS: tuple[str, ...] = ("variant",)

    def _forward_inside(self, x: Any) -> Any:
        """A law's noise by its rule; a tensor's is drawn, unless a network runs on laws."""
        check_strided(self, x)
        if isinstance(x, Law):
            return dispatch(noise.UNIT, None, (x, self), {})
        if torch.overrides.has_torch_function_unary(x):
            return torch.overrides.handle_torch_function(noise.UNIT.call, (x,), x, self)
        return self.drawn(x)

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        op = getattr(momentgen.generated, self.op)
        settings = {name: getattr(self, name) for name in self.SETTINGS if getattr(self, name) is not None}
        return tuple(op(mean, torch.zeros_like(mean) if var is None else var, **settings))


class InjectedNoise(_Unit):
    """``X + Z`` with independent noise Z, the same for every unit; before f it makes f(WX + Z).

    Source: Shekhovtsov & Flach 2018, (9).

    Args:
        var: *variance* of the noise, at least 0.
        mean: mean of the noise; all that ``ap1`` sees.
        distribution: ``normal`` or ``logistic``: what ``sample`` draws.

    Raises:
        InputError: for a negative variance or another distribution.

    >>> layer = InjectedNoise(var=0.5)
    >>> layer(torch.zeros(2)).var
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self, var: float = 1.0, mean: float = 0.0, distribution: Literal["normal", "logistic"] = "normal"
    ) -> None:
        super().__init__()
        wide = "the variance must be finite and not negative"
        self.var = _number("InjectedNoise", "the variance", var, 0, _LARGEST, wide)
        self.mean = _number("InjectedNoise", "the mean", mean, -_LARGEST, _LARGEST, "the mean must be finite")
        if distribution not in ("normal", "logistic"):
            raise InputError(f"InjectedNoise: expected a normal or logistic distribution, got {distribution!r}")
        self.distribution = distribution

    def plain(self, x: Tensor) -> Tensor:
        return x + self.mean if self.mean else x

    def drawn(self, x: Tensor) -> Tensor:
        if self.distribution == "normal":
            return self.plain(x) + math.sqrt(self.var) * torch.randn_like(x)
        uniform = torch.rand_like(x).clamp(torch.finfo(x.dtype).tiny, 1 - torch.finfo(x.dtype).eps)
        return self.plain(x) + math.sqrt(3 * self.var) / math.pi * torch.logit(uniform)

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        # One number, expanded where the input's is: a linear layer then multiplies it once.
        own = torch.full((), self.var, dtype=mean.dtype, device=mean.device)
        if var is None:
            return self.plain(mean), own.expand(mean.shape)
        if var.numel() and all(stride == 0 for stride in var.stride()):
            return self.plain(mean), (var[(0,) * var.dim()] + own).expand(mean.shape)
        return self.plain(mean), var + own

    def extra_repr(self) -> str:
        return f"var={self.var}, mean={self.mean}, distribution={self.distribution!r}"


class _Bernoulli(_Unit):
    """Y in {0, 1} with P(Y = 1 | X) = F(X): mean p = E F(X), variance p (1 - p), whatever F's own variance."""

    def __init__(self, variant: str | None = None) -> None:
        super().__init__()
        self.variant = variant

    def drawn(self, x: Tensor) -> Tensor:
        return torch.bernoulli(self.plain(x))

    def extra_repr(self) -> str:
        return "" if self.variant is None else f"variant={self.variant!r}"


class LogisticBernoulli(_Bernoulli):
    """A binary unit with P(Y = 1 | X) = S(X), as in sigmoid belief networks (Shekhovtsov & Flach 2018, 3.3, C.3).

    Its plain twin, and ``ap1``, is the logistic sigmoid; ``sample`` draws the unit (no gradient passes through a
    draw).

    Args:
        variant: variant of the op, such as ``ap2a``; None for the default.
    """

    op = "logistic_bernoulli"

    def plain(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


class ProbitBernoulli(_Bernoulli):
    """A binary unit with P(Y = 1 | X) = Φ(X) (Shekhovtsov & Flach 2018, C.8).

    Args:
        variant: variant of the op; None for the default.
    """

    op = "probit"

    def plain(self, x: Tensor) -> Tensor:
        return torch.special.ndtr(x)


class BowTie(_Unit):
    """A unit of a bow tie network: ``Z X + eta E``, Z in {0, 1} with P(Z = 1 | X) = S(X/tau), E standard normal.

    Source: Smith, Lawson & Linderman 2019, (4)-(6).  Its mean given X is X S(X/tau), which ``ap1`` computes.
    ``sample`` draws gate and noise; a gradient passes through the X of a draw, not through its gate.  For tau -> 0
    and eta = 0 it is ReLU.

    Args:
        tau: temperature of the gate, from 2^-10 to 16.
        eta: *standard deviation* of the noise, from 0 to 16.

    Raises:
        InputError: if one is not a number in its range.

    >>> layer = BowTie(tau=0.5, eta=0.1)
    >>> layer(torch.zeros(2)).std
    tensor([0.1000, 0.1000])
    """

    op, SETTINGS = "bow_tie", ("tau", "eta")
    tau: float
    eta: float

    def __init__(self, tau: float = 0.1, eta: float = 0.0) -> None:
        super().__init__()
        given: dict[str, Any] = {"tau": tau, "eta": eta}
        for p in momentgen.generated.bow_tie.parameters:
            expected = f"expected {p.name} in [{p.low:g}, {p.high:g}]"
            setattr(self, p.name, _number("BowTie", p.name, given[p.name], p.low, p.high, expected))

    def plain(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x / self.tau)

    def drawn(self, x: Tensor) -> Tensor:
        open_ = x * torch.bernoulli(torch.sigmoid(x.detach() / self.tau))
        return open_ + self.eta * torch.randn_like(x) if self.eta else open_

    def extra_repr(self) -> str:
        return f"tau={self.tau}, eta={self.eta}"

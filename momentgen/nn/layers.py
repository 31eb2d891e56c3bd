"""The layers of torch.nn behind the border, and a few that torch has not: one class per name, over torch's own.

A layer takes a tensor or :class:`~momentgen.Moments` and returns moments; inside a network it is torch's layer.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

import momentgen.generated
from momentgen.errors import InputError
from momentgen.laws.activations import ACTIVATIONS, Activation
from momentgen.laws.border import Border
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.law import Law
from momentgen.laws.table import names
from momentgen.laws.values import as_moments
from momentgen.runtime import Moments, Op
from momentgen.runtime.inputs import DTYPES

__all__ = ["LAYERS", "ActivationLayer", "Layer", "Module", "Sequential", "set_variant"]

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

"""Networks over moments: the layers of torch.nn with the same names, arguments and state dicts.

A layer takes a tensor (variance 0) or :class:`~momentgen.Moments` and returns
moments, by the method in force (:func:`momentgen.method`): ``ap1``, ``ap2`` or ``sample``.
"""

from __future__ import annotations

from typing import Any

from momentgen.nn import activation as _activation
from momentgen.nn import functional as functional
from momentgen.nn.activation import GLU, PReLU, RReLU, set_variant
from momentgen.nn.arithmetic import Add, Cat, Mul
from momentgen.nn.container import ModuleDict, ModuleList, Sequential
from momentgen.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from momentgen.nn.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout
from momentgen.nn.layer import Layer, Module
from momentgen.nn.linear import Bilinear, Embedding, EmbeddingBag, Linear
from momentgen.nn.method import set_method
from momentgen.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from momentgen.nn.normalize import (
    AnalyticNormalization,
    Normalize,
    initialise_analytically,
    propagate_statistics,
)
from momentgen.nn.pool import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    LPPool1d,
    LPPool2d,
    LPPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from momentgen.nn.shape import (
    ChannelShuffle,
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    Flatten,
    Fold,
    Identity,
    PixelShuffle,
    PixelUnshuffle,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    Unflatten,
    Unfold,
    Upsample,
    UpsamplingBilinear2d,
    UpsamplingNearest2d,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)
from momentgen.nn.softmax import LogSoftmax, Softmax, Softmax2d, Softmin
from momentgen.nn.units import InjectedNoise, LogisticBernoulli, ProbitBernoulli
from momentgen.nn.unsupported import without_rule

globals().update(_activation.LAYERS)


def layer_names() -> frozenset[str]:
    """Names of all layers here."""
    return frozenset(
        name for name, value in globals().items() if isinstance(value, type) and issubclass(value, Layer)
    ) - {"Layer"}


__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "Add",
    "AlphaDropout",
    "AnalyticNormalization",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "Cat",
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "EmbeddingBag",
    "FeatureAlphaDropout",
    "Flatten",
    "Fold",
    "GLU",
    "GroupNorm",
    "Identity",
    "InjectedNoise",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "LogisticBernoulli",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "Mul",
    "Normalize",
    "PReLU",
    "PixelShuffle",
    "PixelUnshuffle",
    "ProbitBernoulli",
    "RMSNorm",
    "RReLU",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Sequential",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Unflatten",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "functional",
    "initialise_analytically",
    "propagate_statistics",
    "set_method",
    "set_variant",
    *_activation.LAYERS,
]


def __getattr__(name: str) -> Any:
    # Activations come from the rules that are built; mypy and a reader find them in momentgen.nn.activation's table.
    if error := _activation.missing(name):
        raise error
    if why := without_rule(name):
        raise AttributeError(f"momentgen.nn has no {name}: {why}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

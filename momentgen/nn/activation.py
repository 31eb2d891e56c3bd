"""Activations: each torch.nn class whose rule has been built, as a layer over the generated op.

:data:`ACTIVATIONS` says which op serves which class of torch.nn.  A class whose
op is not built yet has no layer; asking for it names the rule that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

import momentgen.generated
from momentgen.errors import InputError, MomentgenError
from momentgen.nn.layer import Layer, known
from momentgen.runtime import Moments, Op

__all__ = ["ACTIVATIONS", "LAYERS", "Activation", "MissingRuleError", "PReLU", "RReLU", "generated_op", "missing"]


class MissingRuleError(MomentgenError, AttributeError):
    """A layer was asked for whose rule has not been built."""


@dataclass(frozen=True)
class Activation:
    """One row of the table.

    Args:
        layer: the class in torch.nn.
        op: the generated op.
        functions: the functions of torch.nn.functional, torch and torch.Tensor that compute the same.
        parameters: attribute of the torch module -> keyword of the op.
        alternatives: value of the attribute ``approximate`` -> another op.
        at_least: attribute that has no parameter -> the least value for which the op is what torch computes.
    """

    layer: str
    op: str
    functions: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    alternatives: Mapping[object, str] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


ACTIVATIONS: tuple[Activation, ...] = (
    Activation("ReLU", "relu", ("relu", "relu_")),
    Activation("LeakyReLU", "leaky_relu", ("leaky_relu", "leaky_relu_"), _same("negative_slope")),
    Activation("Sigmoid", "logistic_transform", ("sigmoid", "sigmoid_", "expit")),
    Activation("Tanh", "tanh", ("tanh", "tanh_")),
    Activation("SiLU", "silu", ("silu",)),
    Activation("GELU", "gelu", ("gelu",), alternatives={"tanh": "gelu_tanh"}),
    Activation("ELU", "elu", ("elu", "elu_"), _same("alpha")),
    Activation("CELU", "celu", ("celu", "celu_"), _same("alpha")),
    Activation("SELU", "selu", ("selu", "selu_")),
    # Above beta x = threshold torch's softplus is x itself: at 20, its default, 2.1e-9/beta from the op's.
    Activation("Softplus", "softplus", ("softplus",), _same("beta"), at_least={"threshold": 20}),
    Activation("Softsign", "softsign", ("softsign",)),
    Activation("Softshrink", "softshrink", ("softshrink",), _same("lambd")),
    Activation("Hardshrink", "hardshrink", ("hardshrink",), _same("lambd")),
    Activation("Tanhshrink", "tanhshrink", ("tanhshrink",)),
    Activation("Mish", "mish", ("mish",)),
    Activation("Hardtanh", "hardtanh", ("hardtanh", "hardtanh_"), _same("min_val", "max_val")),
    Activation("ReLU6", "relu6", ("relu6",)),
    Activation("Hardsigmoid", "hardsigmoid", ("hardsigmoid",)),
    Activation("Hardswish", "hardswish", ("hardswish",)),
    Activation("LogSigmoid", "logsigmoid", ("logsigmoid",)),
    Activation("Threshold", "threshold", ("threshold", "threshold_"), _same("threshold", "value")),
    # not in torch.nn
    Activation("Abs", "abs", ("abs", "abs_", "absolute")),
    Activation("Heaviside", "heaviside"),
    Activation("Erf", "erf", ("erf",)),
    Activation("Cos", "cos", ("cos",)),
    Activation("Exp", "exp", ("exp",)),
    Activation("Sin", "sin", ("sin",)),
    Activation("Square", "square"),
    Activation("NormalCdf", "normal_cdf", ("ndtr",)),
    Activation("Atan", "atan", ("atan", "atan_", "arctan")),
    Activation("PseudoHuber", "pseudo_huber"),
)
_BY_LAYER = {row.layer: row for row in ACTIVATIONS}


def generated_op(name: str, wanted_by: str) -> Op:
    """The generated op ``name``.

    Raises:
        MissingRuleError: if it has not been built; says by what it was wanted.
    """
    op = getattr(momentgen.generated, name, None)
    if not isinstance(op, Op):
        built = ", ".join(momentgen.generated.__all__)
        raise MissingRuleError(
            f"{wanted_by} needs the rule {name!r}, which is not built (built: {built}); write rules/{name}.py and run "
            "`momentgen build rules/`"
        )
    return op


def missing(layer: str) -> MissingRuleError | None:
    """The error for a class of torch.nn that is in the table without a built op, else None."""
    row = _BY_LAYER.get(layer)
    if row is None or isinstance(getattr(momentgen.generated, row.op, None), Op):
        return None
    try:
        generated_op(row.op, f"momentgen.nn.{layer}")
    except MissingRuleError as error:
        return error
    return None


class ActivationLayer(Layer):
    """What the activations share.

    Attributes:
        row: the layer's row of :data:`ACTIVATIONS`.
        variant: variant of the op; None for its default.  See :func:`set_variant`.
    """

    row: Activation
    variant: str | None = None
    elementwise = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self, "inplace", False):
            self.inplace = False  # the input may be another layer's output, which stays as it is

    def op(self) -> Op:
        """The generated op that serves this layer.

        Raises:
            MissingRuleError: if it has not been built.
        """
        name = self.row.alternatives.get(getattr(self, "approximate", None), self.row.op)
        return generated_op(name, type(self).__name__)

    def moments(self, x: Moments) -> Moments:
        op = self.op()
        for attribute, least in self.row.at_least.items():
            if not getattr(self, attribute) >= least:
                raise InputError(
                    f"{type(self).__name__}: expected {attribute} >= {least:g}, where the rule {op.name!r} holds, got "
                    f"{getattr(self, attribute)!r}"
                )
        params: dict[str, Any] = {word: float(getattr(self, name)) for name, word in self.row.parameters.items()}
        if self.variant is not None:
            return op(x.mean, x.var, variant=self.variant, **params)
        return op(x.mean, x.var, **params)


def set_variant(module: torch.nn.Module, variant: str | None) -> torch.nn.Module:
    """Set the variant (``exact``, ``tight``, ``fitted``, ...) of every activation in ``module`` that has it.

    Returns:
        ``module``.

    Raises:
        InputError: if no activation in it has the variant.
    """
    layers = [part for part in module.modules() if isinstance(part, ActivationLayer)]
    having = [part for part in layers if variant is None or variant in part.op().variants]
    if layers and not having:
        raise InputError(f"set_variant: no activation of {type(module).__name__} has a variant {variant!r}")
    for part in having:
        part.variant = variant
    return module


class _Function(torch.nn.Module):
    """A function of torch as a module: the plain twin of activations that torch.nn does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _OWN[type(self).__name__].__call__(x))


def _heaviside(x: Tensor) -> Tensor:
    return (x >= 0).to(x.dtype)


def _pseudo_huber(x: Tensor) -> Tensor:
    return torch.hypot(x, torch.ones_like(x)) - 1


_OWN = {
    "Abs": torch.abs,
    "Heaviside": _heaviside,
    "Exp": torch.exp,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Erf": torch.erf,
    "Square": torch.square,
    "NormalCdf": torch.special.ndtr,
    "Atan": torch.atan,
    "PseudoHuber": _pseudo_huber,
}


def _make(row: Activation) -> type[Layer]:
    twin = getattr(torch.nn, row.layer, _Function)
    where = "torch.nn." if twin is not _Function else ""
    text = f":class:`{where}{row.layer}` over moments, by the generated op ``{row.op}``."
    body = {"row": row, "__doc__": text, "__module__": __name__, "__qualname__": row.layer}
    return type(row.layer, (ActivationLayer, twin), body)


#: the layers whose ops are built, by name.
LAYERS: dict[str, type[Layer]] = {row.layer: _make(row) for row in ACTIVATIONS if missing(row.layer) is None}
globals().update(LAYERS)


def _parts(x: Moments, wanted_by: str) -> tuple[Moments, Moments]:
    """Moments of max(X, 0) and max(-X, 0)."""
    op = generated_op("relu", wanted_by)
    return op(x.mean, x.var), op(-x.mean, x.var)


class PReLU(Layer, torch.nn.PReLU):
    """:class:`torch.nn.PReLU` over moments: X⁺ - w X⁻, exact, from the moments of X⁺ and X⁻.

    X⁺X⁻ = 0, so Var = Var X⁺ + w² Var X⁻ + 2 w E X⁺ E X⁻.  The three terms keep at least 3/4 of their absolute sum
    for w < 0 too, so nothing cancels.
    """

    elementwise = True

    def moments(self, x: Moments) -> Moments:
        up, down = _parts(x, "PReLU")
        weight: Tensor = self.weight
        if weight.numel() > 1:
            weight = weight.view(-1, *[1] * (x.mean.dim() - 2)) if x.mean.dim() > 1 else weight
        return Moments(
            up.mean - weight * down.mean, up.var + weight.square() * down.var + 2 * weight * up.mean * down.mean
        )


class GLU(Layer, torch.nn.GLU):
    """:class:`torch.nn.GLU` over moments: the product of one half and the logistic transform of the other."""

    def moments(self, x: Moments) -> Moments:
        (m1, m2), (v1, v2) = (part.chunk(2, self.dim) for part in x)
        m2, v2 = generated_op("logistic_transform", "GLU")(m2, v2)
        return known(m1 * m2, v1 * (v2 + m2.square()) + m1.square() * v2)


class RReLU(Layer, torch.nn.RReLU):
    """:class:`torch.nn.RReLU` over moments; in training its random slope, uniform, is taken analytically."""

    elementwise = True

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__(lower, upper, False)

    @property
    def noisy(self) -> bool:
        return self.training and self.upper > self.lower

    def mean_only(self, x: Tensor) -> Tensor:
        return torch.nn.functional.rrelu(x, self.lower, self.upper, False)

    def moments(self, x: Moments) -> Moments:
        up, down = _parts(x, "RReLU")
        slope = (self.lower + self.upper) / 2
        spread = (self.upper - self.lower) ** 2 / 12 if self.noisy else 0.0
        below = (slope**2 + spread) * down.var + spread * down.mean.square()
        return known(up.mean - slope * down.mean, up.var + below + 2 * slope * up.mean * down.mean)

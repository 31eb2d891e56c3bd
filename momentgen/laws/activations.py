"""Functions of one value at a time: which op has the moments of each, also of functions that users make known.

Each row of :data:`ACTIVATIONS` names a class of torch.nn, the generated op, the functions that compute the same and
their parameters.  :data:`REGISTERED` has what users make known.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from momentgen.errors import InputError
from momentgen.laws import table
from momentgen.laws.table import Entry, names
from momentgen.runtime import Op
from momentgen.runtime.learned import Rescaled


@dataclass(frozen=True)
class Activation:
    """One row of the table.

    Args:
        layer: the class in torch.nn, or the name of what has none.
        op: the generated op.
        functions: the functions of torch.nn.functional, torch and torch.Tensor that compute the same.
        parameters: parameter of the function, and attribute of the module -> (keyword of the op, default); in the
            function's order.
        alternatives: value of the parameter ``approximate`` -> another op.
        at_least: a parameter that the op has not -> the least value for which the op is what torch computes.
    """

    layer: str
    op: str
    functions: tuple[str, ...] = ()
    parameters: Mapping[str, float | None] = field(default_factory=dict)
    alternatives: Mapping[object, str] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)


ACTIVATIONS: tuple[Activation, ...] = (
    Activation("ReLU", "relu", ("relu",)),
    Activation("LeakyReLU", "leaky_relu", ("leaky_relu",), {"negative_slope": 0.01}),
    Activation("Sigmoid", "logistic_transform", ("sigmoid",)),
    Activation("Tanh", "tanh", ("tanh",)),
    Activation("SiLU", "silu", ("silu",)),
    Activation("GELU", "gelu", ("gelu",), alternatives={"tanh": "gelu_tanh"}),
    Activation("ELU", "elu", ("elu",), {"alpha": 1.0}),
    Activation("CELU", "celu", ("celu",), {"alpha": 1.0}),
    Activation("SELU", "selu", ("selu",)),
    # Above beta x = threshold torch's softplus is x itself: at 20, its default, 2.1e-9/beta from the op's.
    Activation("Softplus", "softplus", ("softplus",), {"beta": 1.0}, at_least={"threshold": 20}),
    Activation("Softsign", "softsign", ("softsign",)),
    Activation("Softshrink", "softshrink", ("softshrink",), {"lambd": 0.5}),
    Activation("Hardshrink", "hardshrink", ("hardshrink",), {"lambd": 0.5}),
    Activation("Tanhshrink", "tanhshrink", ("tanhshrink",)),
    Activation("Mish", "mish", ("mish",)),
    Activation("Hardtanh", "hardtanh", ("hardtanh",), {"min_val": -1.0, "max_val": 1.0}),
    Activation("ReLU6", "relu6", ("relu6",)),
    Activation("Hardsigmoid", "hardsigmoid", ("hardsigmoid",)),
    Activation("Hardswish", "hardswish", ("hardswish",)),
    Activation("LogSigmoid", "logsigmoid", ("logsigmoid",)),
    Activation("Threshold", "threshold", ("threshold",), {"threshold": None, "value": None}),
    # not in torch.nn
    Activation("Abs", "abs", ("abs",)),
    Activation("Erf", "erf", ("erf",)),
    Activation("Cos", "cos", ("cos",)),
    Activation("Exp", "exp", ("exp",)),
    Activation("Sin", "sin", ("sin",)),
    Activation("Square", "square", ("square",)),
    Activation("NormalCdf", "normal_cdf", ("normal_cdf",)),
    Activation("Atan", "atan", ("atan",)),
)
#: name of a function -> its row
BY_FUNCTION: dict[str, Activation] = {name: row for row in ACTIVATIONS for name in row.functions}

#: functions without an op that are defined and smooth on the whole line: integrated by quadrature
INTEGRATED = names("expm1 exp2 sinh cosh asinh erfc sinc")
#: functions that are not defined for every value of a normal variable: refused
UNDEFINED = names("log log2 log10 log1p acos asin acosh atanh tan lgamma digamma logit erfinv")


#: name of a function -> op and the names of its parameters, in the function's order
REGISTERED: Final[dict[str, tuple[Op | Rescaled, tuple[str, ...]]]] = {}
#: functions of torch in C++, by the types that Python has for them
_NATIVE: Final = BuiltinFunctionType | MethodDescriptorType
#: what :func:`activation` has made
_ASKING: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def register_activation(function: Any, op: Op | Rescaled, *parameters: str) -> None:
    """Let an op have the moments of a function of torch.

    Args:
        function: an overridable function object of torch, such as ``torch.special.i0`` or a custom operator
            ``torch.ops.my_package.swoosh``.  A function of yours is made known by :func:`activation`.
        op: the generated op, of one random input, such as a build of your own rules makes.  Or one in units that are
            learned, by :func:`momentgen.runtime.rescaled`.
        parameters: names of the op's parameters, in the order of the function's arguments after the first.  Arguments
            may be tensors, and learned, where the op says so.

    Raises:
        InputError: if the op takes more than one random input, or has no such parameter.  Also if torch calls the
            function without asking what its arguments are, as it does a plain function or a module.
    """
    if op.inputs != 1:
        raise InputError(f"register_activation: expected an op of one input, {op.name} has {op.inputs}")
    names = [parameter.name for parameter in op.parameters]
    unknown = [name for name in parameters if name not in names]
    if unknown:
        raise InputError(f"register_activation: expected parameters of {op.name}, which are {names}, got {unknown}")
    function = getattr(function, "_opoverload", function)  # what torch.library.custom_op returns
    known = table.TABLE.get(function) if isinstance(function, Hashable) else None
    is_torchs = isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket | _NATIVE) or (
        isinstance(function, FunctionType) and (function.__module__ or "").partition(".")[0] == "torch"
    )
    if known is None and not is_torchs and not (isinstance(function, Hashable) and function in _ASKING):
        raise InputError(f"register_activation: expected a function object of torch, got {_described(function, op)}")
    name = known.name if known is not None else _new_name(function)
    REGISTERED[name] = (op, parameters)
    if known is None or known.kind != "pointwise":
        table.TABLE[function] = Entry(name, "pointwise", function)


def activation(op: Op | Rescaled, *parameters: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Make a function of your own known, by a decorator: of a random value it has the moments of an op.

    Args:
        op: as in :func:`register_activation`.
        parameters: likewise; defaults are those of the function.

    Raises:
        InputError: as in :func:`register_activation`.  Also if the function differs from the op's.

    >>> import momentgen
    >>> @activation(momentgen.generated.silu)
    ... def swish(x):
    ...     return x * torch.sigmoid(x)
    >>> net = momentgen.convert(torch.nn.Sequential(torch.nn.Linear(2, 3)), "ap2")
    >>> swish(torch.zeros(2))
    tensor([0., 0.])
    """

    def known(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        words = list(inspect.signature(function).parameters.values())[1:] if parameters else []
        placed = [(one.name, one.default) for one in words if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        usual = placed[: len(parameters)]
        _check_same(function, op, dict(zip(parameters, (default for _, default in usual), strict=False)))

        @functools.wraps(function)
        def asking(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if has_torch_function((x,)):
                args = (*args, *[kwargs.pop(name, default) for name, default in usual[len(args) :]])
                found: Tensor = handle_torch_function(asking, (x,), x, *args, **kwargs)
                return found
            return function(x, *args, **kwargs)

        _ASKING.add(asking)
        register_activation(asking, op, *parameters)
        return asking

    return known


def _check_same(function: Callable[..., Tensor], op: Op | Rescaled, params: dict[str, Any]) -> None:
    """Raise an error if the function, with its defaults, differs from the op's f at a few values."""
    if not isinstance(op, Op) or not all(isinstance(value, int | float) for value in params.values()):
        return
    x = torch.tensor([-1.7, -0.6, 0.4, 2.3], dtype=torch.float64)
    mean, var = op.kernel(backend="torch")(x, torch.zeros_like(x), **params)[:2]
    try:
        found = function(x, *params.values())
    except Exception:  # it may take other shapes or dtypes
        return
    off = (found - mean).abs() > 1e-3 * (1 + mean.abs())
    if not var.any() and bool(off.any()):  # an op with a variance at v = 0 is of a function that draws
        place = int(off.int().argmax())
        raise InputError(
            f"activation: {function.__name__} is another function than that of {op.name}: at x = {x[place]:g} it is "
            f"{found[place]:.6g}, and that of {op.name} is {mean[place]:.6g}"
        )


def _new_name(function: Any) -> str:
    """A name that no other function has: rules are found by it."""
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(function)
    name = f"{function.__module__}.{function.__qualname__}"
    # functions that are made in one place have one name
    return next(new for n in itertools.count(1) if (new := name if n == 1 else f"{name}#{n}") not in REGISTERED)


def _described(function: Any, op: Op | Rescaled) -> str:
    """What was given in the place of a function of torch, and what to write."""
    if isinstance(function, type | torch.nn.Module):
        kind = function.__name__ if isinstance(function, type) else type(function).__name__
        return f"the module {kind}; make the function known that its forward calls"
    name = getattr(function, "__name__", repr(function))
    return f"{name}, which torch hides from laws; write @momentgen.laws.activation({op.name}) above its definition"

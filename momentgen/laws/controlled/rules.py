"""How torch's functions act on the shift of a network: the derivative of each, averaged over the rows.

Functions that are linear in what is random act on the shift as they are.  A pointwise function multiplies it by the
mean of its slope, and a product by the mean of the other factor.  A pool multiplies it by the mean of its one-hot
derivative.  Any other function averages the vector-Jacobian products of a few rows.  A function without a derivative
ends the shift there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from momentgen.laws.controlled import normalised
from momentgen.laws.controlled.call import Call, Rule, Shifted, has_derivative
from momentgen.laws.controlled.draws import drawn
from momentgen.laws.controlled.pull import pulled
from momentgen.laws.controlled.shift import draws
from momentgen.laws.nests import mapped, tensors_in
from momentgen.laws.table import Entry, names

__all__ = ["rule_of"]


def rule_of(function: Any, entry: Entry | None) -> Rule:
    """The rule of a function that has a random argument, or that draws."""
    if entry is None:
        return drawn if draws(function) else pulled
    return _BY_NAME.get(entry.name) or _BY_KIND.get(entry.kind, pulled)


def _ends(call: Call) -> Shifted | None:
    """A function without a derivative."""
    call.mode.curved = True
    call.run()
    return None


def _total(parts: list[Tensor], out: Any) -> Tensor:
    """The sum of the shifts of a result's parts, of its shape."""
    return sum(parts[1:], parts[0]).expand_as(out)


def _bilinear(call: Call, a: Any, b: Any, function: Callable[[Any, Any], Tensor]) -> Callable[[], list[Tensor]]:
    """Of a function that is linear in each of two: either's shift with the mean of the other, where it is random."""
    of_b = (call.average(b) if isinstance(b, Tensor) else lambda: b) if call.random(a) else None
    of_a = (call.average(a) if isinstance(a, Tensor) else lambda: a) if call.random(b) else None

    def parts() -> list[Tensor]:
        by_a = [] if of_b is None else [function(call.shift(a), of_b())]
        return by_a if of_a is None else [*by_a, function(of_a(), call.shift(b))]

    return parts


# --------------------------------------------------------------------- linear


def _shift_or_zero(call: Call, value: Any) -> Any:
    """In the place of an argument that is moved: its shift, 0 for a certain tensor; indices and masks as they are."""
    if isinstance(value, list | tuple):
        return type(value)([_shift_or_zero(call, part) for part in value])
    if not has_derivative(value):
        return value
    return call.shift(value) if call.random(value) else torch.zeros_like(value)


def linear_in_all(call: Call) -> Shifted:
    """A function that is linear in all its real tensors together, as those that move values."""
    call.run()

    def shifted() -> Any:
        args = [_shift_or_zero(call, value) for value in call.args]
        return call.function(*args, **{name: _shift_or_zero(call, value) for name, value in call.kwargs.items()})

    return shifted


def _linear_in_first(call: Call) -> Shifted | None:
    """A function that is linear in its first argument."""
    if not call.args or not call.random(call.args[0]):
        return pulled(call)
    if any(map(call.random, tensors_in((*call.args[1:], *call.kwargs.values())))):
        return pulled(call)
    call.run()
    return lambda: call.function(call.shift(call.args[0]), *call.args[1:], **call.kwargs)


def _pad(call: Call) -> Shifted:
    """Padding: whatever is beside the values is certain."""
    call.run()
    mode = call.argument(2, "mode", "constant")
    given = (call.args[0] if call.args else call.kwargs["input"], call.argument(1, "pad"))
    return lambda: F.pad(call.shift(given[0]), given[1], mode)


def _weighted(call: Call) -> Shifted:
    """Linear maps and convolutions: bilinear in argument and weight, plus a bias."""
    call.run()
    x, weight, bias = (call.argument(place, name) for place, name in enumerate(("input", "weight", "bias")))
    settings = call.args[3:]
    kwargs = {name: value for name, value in call.kwargs.items() if name not in ("input", "weight", "bias")}
    function = _few_channels(call, x, weight) or call.function
    product = _bilinear(call, x, weight, lambda left, right: function(left, right, None, *settings, **kwargs))

    def shifted() -> Tensor:
        parts = product()
        if call.random(bias):
            # linear has its channels last, convolutions have them before the positions
            positions = 0 if call.name == "linear" else weight.dim() - 2
            parts.append(call.shift(bias).reshape(-1, *[1] * positions).expand_as(call.out))
        return _total(parts, call.out)

    return shifted


def _few_channels(call: Call, x: Tensor, weight: Tensor) -> Callable[..., Tensor] | None:
    """A convolution of few channels by products of matrices: on a CPU torch's own derivative is many times slower."""
    few = call.name == "conv2d" and x.dim() == 4 and x.shape[1] <= 3 and x.shape[1] == weight.shape[1]
    small = few and x.shape[1] * weight.shape[2:].numel() <= 8 * weight.shape[0]  # beside the result
    if not small or x.device.type != "cpu" or isinstance(call.argument(4, "padding", 0), str):
        return None

    def convolved(
        value: Tensor, by: Tensor, _: None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Tensor:
        columns = F.unfold(value, by.shape[2:], dilation, padding, stride)
        return (by.flatten(1) @ columns).view(-1, by.shape[0], *call.out.shape[2:])

    return convolved


def _added(call: Call) -> Shifted:
    """``addmm`` and its like: β times the first plus α times the product of the other two."""
    call.run()
    base, first, second = call.args[:3]
    alpha, beta = call.kwargs.get("alpha", 1), call.kwargs.get("beta", 1)

    def multiply(left: Tensor, right: Tensor) -> Tensor:
        if call.name == "addbmm":
            return alpha * torch.einsum("bij,bjk->ik", left, right)
        return alpha * (torch.outer(left, right) if call.name == "addr" else left @ right)

    product = _bilinear(call, first, second, multiply)

    def shifted() -> Tensor:
        return _total([*([call.shift(base) * beta] if call.random(base) else []), *product()], call.out)

    return shifted


def _batch_norm(call: Call) -> Shifted | None:
    """With running statistics a factor for each channel; with those of the batch any function."""
    given = [
        call.argument(place, name)
        for place, name in enumerate(("input", "running_mean", "running_var", "weight", "bias", "training"))
    ]
    x, mean, var, weight, _, training = given
    eps = call.argument(7, "eps", 1e-5)
    if training or any(map(call.random, given[1:])) or call.function is not F.batch_norm or var is None:
        return pulled(call)
    call.run()
    return lambda: F.batch_norm(call.shift(x), torch.zeros_like(mean), var, weight, None, False, 0.0, eps)


# ------------------------------------------------------------------ arithmetic


def _sum(call: Call) -> Shifted:
    """``add``, ``sub`` and ``rsub``."""
    call.run()
    a, b = (call.argument(place, name) for place, name in enumerate(("input", "other")))
    alpha = call.kwargs.get("alpha", call.args[2] if len(call.args) > 2 else 1)
    factors = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.name]

    def shifted() -> Tensor:
        parts = [
            call.shift(value) if factor == 1 else call.shift(value) * factor
            for value, factor in zip((a, b), factors, strict=True)
            if call.random(value)
        ]
        return _total(parts, call.out)

    return shifted


def _negative(call: Call) -> Shifted:
    call.run()
    return lambda: -call.shift(call.argument(0, "input"))


def _times(call: Call) -> Shifted:
    """``mul``: bilinear."""
    call.run()
    a, b = (call.argument(place, name) for place, name in enumerate(("input", "other")))
    product = _bilinear(call, a, b, torch.mul)
    return lambda: _total(product(), call.out)


def _quotient(call: Call) -> Shifted | None:
    """``div`` and ``rdiv``: the numerator's slope is the mean of one over the denominator."""
    if call.argument(2, "rounding_mode") is not None or "rounding_mode" in call.kwargs:
        return _ends(call)
    call.run()
    a, b = (call.argument(place, name) for place, name in enumerate(("input", "other")))
    if call.name == "rdiv":
        a, b = b, a
    by_a = call.average(lambda: _inverse(b, a)) if call.random(a) and isinstance(b, Tensor) else None
    by_b = call.average(lambda: -call.out / b) if call.random(b) else None

    def shifted() -> Tensor:
        parts = [call.shift(a) / b if by_a is None else call.shift(a) * by_a()] if call.random(a) else []
        return _total(parts if by_b is None else [*parts, call.shift(b) * by_b()], call.out)

    return shifted


def _inverse(value: Tensor, like: Tensor) -> Tensor:
    return value.reciprocal() if value.is_floating_point() else value.to(like.dtype).reciprocal()


def _product(call: Call) -> Shifted | None:
    """``matmul`` and its like, of two arguments."""
    operands = tensors_in((*call.args, *call.kwargs.values()))
    if call.name == "bilinear" or len(operands) != 2:
        return pulled(call)
    a, b = operands
    call.run()

    def with_operands(left: Tensor, right: Tensor) -> Any:
        rest = iter((left, right))
        args, named = mapped(lambda value: next(rest) if isinstance(value, Tensor) else value, (call.args, call.kwargs))
        return call.function(*args, **named)

    product = _bilinear(call, a, b, with_operands)
    return lambda: _total(product(), call.out)


# ------------------------------------------------------------------- pointwise

#: slopes that cost less than autograd, of argument and result
_SLOPES: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": lambda x, y: y.detach().sign(),  # a fraction of the time of y > 0 as numbers
    "sigmoid": lambda x, y: y * (1 - y),
    "tanh": lambda x, y: 1 - y * y,
    "exp": lambda x, y: y,
    "square": lambda x, y: 2 * x,
    "abs": lambda x, y: x.sign(),
    "sqrt": lambda x, y: torch.where(y > 0, 0.5 / y, 0),
    "sin": lambda x, y: x.cos(),
    "cos": lambda x, y: -x.sin(),
    "log": lambda x, y: 1 / x,
    "reciprocal": lambda x, y: -y * y,
    "relu6": lambda x, y: (x > 0) & (x < 6),
    # torch has no second derivative of these two
    "hardsigmoid": lambda x, y: ((x > -3) & (x < 3)).to(x.dtype) / 6,
    "hardswish": lambda x, y: torch.where(x >= 3, 1, torch.where(x > -3, (2 * x + 3) / 6, 0)),
}


def _pointwise(call: Call) -> Shifted | None:
    """A function of each value by itself: the shift times the mean of its slope."""
    x = call.argument(0, "input")
    others = tensors_in((*call.args[1:], *[value for name, value in call.kwargs.items() if name != "input"]))
    if not call.random(x) or x.is_complex() or any(map(call.random, others)):
        return pulled(call)
    known = _SLOPES.get(call.name)
    if known is not None:
        call.run()
        slope = call.average(lambda: known(x, call.out).to(x.dtype))
    else:
        slopes = _slope_by_autograd(call, x)
        if slopes is None:
            return None
        slope = call.average(slopes)
    return lambda: call.shift(x) * _finite(slope())


def _finite(slope: Tensor) -> Tensor:
    """The mean of slopes, 0 where one overflows: there the shift ends, and the rows alone are right."""
    return torch.where(slope.isfinite(), slope, 0)


def _slope_by_autograd(call: Call, x: Tensor) -> Tensor | None:
    """The slope of each value, and the result in ``call.out``; None where there is none."""
    keeps = call.mode.keeps_graph
    with torch.enable_grad():
        own = x.view_as(x) if keeps and x.requires_grad else x.detach().requires_grad_()
        args = (own, *call.args[1:]) if call.args else call.args
        kwargs = call.kwargs if call.args else {**call.kwargs, "input": own}
        out = call.function(*args, **kwargs)
        if not isinstance(out, Tensor) or not out.requires_grad:
            call.out = out
            return None
        (slope,) = torch.autograd.grad(out, own, torch.ones_like(out), create_graph=keeps)
    call.out = out if keeps else out.detach()
    return slope


# --------------------------------------------------------------------- choices


def _where(call: Call) -> Shifted | None:
    """``where``: each side by the share of rows in which it is chosen."""
    if len(call.args) < 3:
        return pulled(call)
    call.run()
    condition, a, b = call.args[:3]
    return _chosen(call, condition, a, b)


def _chosen(call: Call, condition: Tensor, a: Any, b: Any) -> Shifted:
    share = call.average(condition if call.mode.constant(condition) else condition.to(call.out.dtype))

    def shifted() -> Tensor:
        part = share().to(call.out.dtype)
        sides = ((a, part), (b, 1 - part))
        return _total([call.shift(value) * weight for value, weight in sides if call.random(value)], call.out)

    return shifted


def _masked_fill(call: Call) -> Shifted:
    call.run()
    x, mask, value = (call.argument(place, name) for place, name in enumerate(("input", "mask", "value")))
    return _chosen(call, mask, value, x)


def _larger(call: Call) -> Shifted | None:
    """The larger or smaller of two: each by the share of rows in which it is."""
    a, b = (call.argument(place, name) for place, name in enumerate(("input", "other")))
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return pulled(call)
    call.run()
    return _chosen(call, a > b if call.name in ("maximum", "fmax") else a < b, a, b)


def _max_pool(call: Call) -> Shifted | None:
    """A max pool whose windows tile the input: the share of rows in which each value is its window's largest."""
    dims = int(call.name[-2])
    x, kernel, stride, padding, dilation = (
        call.argument(place, name, default)
        for place, (name, default) in enumerate(
            (("input", None), ("kernel_size", None), ("stride", None), ("padding", 0), ("dilation", 1))
        )
    )
    sizes, steps, pads, gaps = (
        (value,) * dims if isinstance(value, int) else tuple(value) if value else None
        for value in (kernel, stride, padding, dilation)
    )
    steps = steps or sizes
    tiles = sizes is not None and steps == sizes and not any(pads or (0,)) and set(gaps or (1,)) == {1}
    tiles = tiles and not call.argument(5, "ceil_mode", False)
    places = x.shape[-dims:].numel()
    if not tiles or call.argument(6, "return_indices", False) or not places:
        return pulled(call)
    pool = getattr(F, f"max_pool{dims}d")
    call.out, found = pool(x, kernel, stride, return_indices=True)

    def chosen() -> Tensor:
        flat = found.reshape(-1, found.shape[-dims:].numel())
        ones = torch.ones((), dtype=x.dtype, device=x.device).expand(flat.shape)
        return x.new_zeros(flat.shape[0], places).scatter_(1, flat, ones).view(x.shape)

    share = call.average(chosen)
    mean = getattr(F, f"avg_pool{dims}d")
    values = torch.Size(sizes or ()).numel()
    return lambda: mean(call.shift(x) * share(), kernel, steps) * values


def _may_have_derivative(call: Call) -> Shifted | None:
    """Among functions of the value that was drawn, those that choose values have a derivative."""
    return pulled(call) if call.name in _CHOOSING else _ends(call)


_CHOOSING: Final = names("sort topk kthvalue median mode cummax cummin remainder fmod frac unique")


_BY_KIND: Final[dict[str, Rule]] = {
    "affine": _linear_in_first,
    "movement": linear_in_all,
    "pointwise": _pointwise,
    "product": _product,
    "decision": _may_have_derivative,
    "softmax": normalised.softmax,
    "noise": drawn,
}
_BY_NAME: Final[dict[str, Rule]] = {
    **dict.fromkeys(("linear", *(f"{name}{d}d" for d in (1, 2, 3) for name in ("conv", "conv_transpose"))), _weighted),
    **dict.fromkeys(names("addmm addbmm baddbmm addmv addr"), _added),
    **dict.fromkeys(names("add sub rsub"), _sum),
    **dict.fromkeys(names("div rdiv"), _quotient),
    **dict.fromkeys((f"max_pool{d}d" for d in (1, 2, 3)), _max_pool),
    **dict.fromkeys(names("maximum minimum fmax fmin"), _larger),
    **dict.fromkeys(
        names(
            "fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 hfft2 ihfft2 fftn ifftn rfftn irfftn hfftn ihfftn "
            "complex view_as_complex conj conj_physical resolve_conj resolve_neg trace trapezoid trapz"
        ),
        linear_in_all,
    ),
    **dict.fromkeys(names("embedding_bag index_fill masked_select"), pulled),
    "requires_grad_": _ends,  # what it was, it stays
    "pad": _pad,
    "mul": _times,
    "neg": _negative,
    "where": _where,
    "masked_fill": _masked_fill,
    "batch_norm": _batch_norm,
    "layer_norm": normalised.layer_norm,
    "scaled_dot_product_attention": normalised.attention,
}

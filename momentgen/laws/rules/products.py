"""Products of random values, ``einsum``, and functions written over others: gated units, ``addmm`` and its like.

The latter are a few lines each over functions of torch that laws have rules for.  So they serve every law that has
those.  ``F.multi_head_attention_forward`` is run from torch's own code object.
"""

from __future__ import annotations

import math
import string
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from momentgen.laws.diagonal import Diagonal, made, mean_of, pair
from momentgen.laws.law import Law, Rule, laws_in, remember, rule
from momentgen.laws.notes import unsupported
from momentgen.laws.programs import note_if_related, same_value
from momentgen.laws.rules.attention import by_hand, gram
from momentgen.laws.rules.linear import bilinear_moments
from momentgen.laws.table import Entry


@rule(Diagonal, "product")
def _product(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if entry.name == "einsum":
        return _einsum(entry, args)
    x, y, *rest = args
    if entry.name == "inner" and not (x.ndim and y.ndim):
        return x * y
    if x.ndim == y.ndim == 1 and entry.name in ("dot", "inner", *_MATRICES):
        return (x * y).sum()
    if entry.name == "rmatmul":
        x, y = y, x
    if entry.name == "outer" and isinstance(x, Diagonal) and isinstance(y, Diagonal) and same_value(x, y):
        column = x.unsqueeze(-1)
        return column @ column.mT
    if entry.name in _MATRICES and x.ndim > 1 and y.ndim > 1 and x.shape[-2] == y.shape[-1] == 1:
        return (x.squeeze(-2) * y.squeeze(-1)).sum(-1)[..., None, None]  # a row by a column: each value by one
    if entry.name in _MATRICES:
        found = by_hand(x, y)
        if found is not None:
            return found
    of_squares = gram(x, y) if entry.name in _MATRICES else None
    if x is y:
        raise unsupported(entry, x, "a random matrix times itself has no rule")
    if of_squares is None:
        note_if_related(entry, x, y)
    call = torch.matmul if entry.name == "rmatmul" else entry.call
    mean, var = bilinear_moments(lambda a, b: call(a, b, *rest, **kwargs), *pair(x), *pair(y))
    if of_squares is not None:  # the diagonal is a sum of squares: mean Σ v more, and variance Σ (v² + 2 m² v)
        more = of_squares * (of_squares + 2 * x._parts()[0].square())
        mean, var = mean + torch.diag_embed(of_squares.sum(-1)), var + torch.diag_embed(more.sum(-1))
    of = x if isinstance(x, Diagonal) else y
    return remember(made(mean, var), entry, (x, y, *rest), kwargs, of)


_MATRICES = ("matmul", "mm", "bmm", "rmatmul")


def _spelled(equation: str, operands: list[Any]) -> tuple[list[str], str]:
    """The indices of each operand and of the result, without an ellipsis."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    sizes = [x.ndim - len(part.replace("...", "")) for x, part in zip(operands, parts, strict=True)]
    most = max((size for size, part in zip(sizes, parts, strict=True) if "..." in part), default=0)
    dots = "".join(spare[:most])
    if not arrow:
        named = "".join(parts).replace(".", "")
        out = "..." + "".join(letter for letter in sorted(set(named)) if named.count(letter) == 1)
    parts = [part.replace("...", dots[most - size :]) for size, part in zip(sizes, parts, strict=True)]
    return parts, out.replace("...", dots)


def _einsum(entry: Entry, args: tuple[Any, ...]) -> Any:
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = list(operands[0])
    if len(operands) == 1:
        mean, var = pair(operands[0])
        return made(torch.einsum(equation, mean), torch.einsum(equation, var))
    random = [k for k, operand in enumerate(operands) if isinstance(operand, Diagonal)]
    if not isinstance(equation, str) or (len(operands) > 2 and len(random) > 1):
        raise unsupported(entry, laws_in(operands)[0], "an equation of up to two random operands has a rule")
    parts, out = _spelled(equation, operands)
    if len(operands) > 2:  # all but the random one first
        (k,) = random
        rest = [part for n, part in enumerate(parts) if n != k]
        kept = "".join(letter for letter in sorted(set("".join(rest))) if letter in out or letter in parts[k])
        certain = [mean_of(operand) for n, operand in enumerate(operands) if n != k]
        operands = [operands[k], torch.einsum(f"{','.join(rest)}->{kept}", *certain)]
        parts = [parts[k], kept]
    (a, b), (x, y) = parts, operands
    if a == b and isinstance(x, Diagonal) and isinstance(y, Diagonal):
        return torch.einsum(f"{a}->{out}", x * y)  # type: ignore[operator]
    # An index of one operand alone that is summed over would let the other's values meet many of its values.
    x, a = _reduced(x, a, b + out)
    y, b = _reduced(y, b, a + out)
    if out and out[-1] in a and out[-1] not in b:
        x, y, a, b = y, x, b, a
    batch = [letter for letter in out if letter in a and letter in b]
    rows, columns = ([letter for letter in out if letter in own and letter not in batch] for own in (a, b))
    summed = [letter for letter in a if letter in b and letter not in out]
    sizes = {**dict(zip(a, x.shape, strict=True)), **dict(zip(b, y.shape, strict=True))}
    product = _grouped(x, a, batch, rows, summed) @ _grouped(y, b, batch, summed, columns)
    product = product.reshape([sizes[letter] for letter in (*batch, *rows, *columns)])
    return _permuted(product, "".join((*batch, *rows, *columns)), out)


def _reduced(x: Any, letters: str, others: str) -> tuple[Any, str]:
    """An operand whose indices are there once, without those that no other has."""
    kept = "".join(dict.fromkeys(letter for letter in letters if letter in others))
    return (x, letters) if kept == letters else (torch.einsum(f"{letters}->{kept}", x), kept)


def _permuted(x: Any, letters: str, wanted: str) -> Any:
    return x if letters == wanted else x.permute([letters.index(letter) for letter in wanted])


def _grouped(x: Any, letters: str, batch: list[str], *groups: list[str]) -> Any:
    """An operand as matrices: its indices of the batch, and two groups of indices that are one each."""
    x = _permuted(x, letters, "".join((*batch, *groups[0], *groups[1])))
    if len(groups[0]) == len(groups[1]) == 1:
        return x
    sizes = x.shape[len(batch) :]
    first = math.prod(sizes[: len(groups[0])])
    return x.reshape(*x.shape[: len(batch)], first, math.prod(sizes[len(groups[0]) :]))


def _by_body(function: Any) -> Rule:
    """The rule of a function of torch.nn.functional whose body runs on laws, instead of handing itself to them."""
    asked = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    known = {**function.__globals__, **dict.fromkeys(asked, lambda *_: False)}
    body = types.FunctionType(function.__code__, known, function.__name__, function.__defaults__)
    defaults = function.__kwdefaults__ or {}

    def rule(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return body(*args, **{**defaults, **kwargs})

    return rule


_plain_dtype = F._none_or_dtype


def _dtype_of_mask(mask: Any) -> torch.dtype | None:
    """The type of a mask's numbers, also of a law: a mask may be an argument of the network."""
    return mask.dtype if isinstance(mask, Law) else _plain_dtype(mask)


# nn.MultiheadAttention and nn.Transformer ask it of their masks before they call a function that laws know.
F._none_or_dtype = _dtype_of_mask  # type: ignore[assignment]
rule(Diagonal, "multi_head_attention_forward")(_by_body(F.multi_head_attention_forward))


# ------------------------------------------------------------ the others


def _glu(x: Any, dim: int = -1) -> Any:
    first, second = x.chunk(2, dim)
    return first * torch.sigmoid(second)


def _times(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


_WRITTEN: dict[str, Callable[..., Any]] = {
    "glu": _glu,
    "lerp": lambda input, end, weight: input * (1 - weight) + end * weight,
    "softmin": lambda input, dim=None, _stacklevel=3, dtype=None: F.softmax(-input, dim, dtype=dtype),
    "addcmul": lambda input, tensor1, tensor2, value=1: input + _times(tensor1 * tensor2, value),
    "addcdiv": lambda input, tensor1, tensor2, value=1: input + _times(tensor1 / tensor2, value),
    "trace": lambda input: input.diagonal().sum(),
    "linalg_vecdot": lambda x, y, dim=-1: (x * y).sum(dim),
    "vdot": lambda input, other: (input * other).sum(),
}


@rule(Diagonal, *_WRITTEN)
def _written_out(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _WRITTEN[entry.name](*args, **kwargs)


@rule(Diagonal, "addmm", "addbmm", "baddbmm", "addmv", "addr")
def _add_product(entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    product = (torch.outer if entry.name == "addr" else torch.matmul)(args[1], args[2])
    product = _times(product.sum(0) if entry.name == "addbmm" else product, kwargs.get("alpha", 1))
    beta = kwargs.get("beta", 1)
    return product if beta == 0 else product + _times(args[0], beta)  # what is not added may be anything

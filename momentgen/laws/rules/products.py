"""Products of random values: matrix products and ``einsum``."""

from __future__ import annotations

import math
import string
from typing import Any

import torch

from momentgen.laws.diagonal import Diagonal, made, mean_of, pair
from momentgen.laws.law import laws_in, remember, rule
from momentgen.laws.notes import unsupported
from momentgen.laws.programs import note_if_related, same_value
from momentgen.laws.rules.attention import by_hand, gram
from momentgen.laws.rules.linear import bilinear_moments
from momentgen.laws.table import Entry

__all__ = []


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

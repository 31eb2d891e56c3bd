"""What a result is, given what its operands are: which methods must be right about it.

Each function takes the operands and a key that no other value has, and returns a value with the attributes of
:class:`~fuzz.program.Value` but name and shape.
"""

from collections.abc import Callable
from dataclasses import replace

from fuzz.program import Value

__all__ = ["EFFECTS"]

Effect = Callable[..., Value]


def _worst(*values: Value) -> float:
    """``tolerance`` of a function of several values."""
    return max(value.tolerance for value in values)


def scaled(key: str, x: Value, *_: Value) -> Value:
    """Affine, element for element."""
    return x


def pointwise(key: str, x: Value, *_: Value) -> Value:
    return replace(x, affine=False, exact=x.exact and (x.line is not None or not x.roots))


def moved(key: str, x: Value, *_: Value) -> Value:
    return replace(x, line=None if x.line is None else (*x.line, key))


def repeated(key: str, x: Value, *_: Value) -> Value:
    return replace(moved(key, x), independent=False)


def masked(key: str, x: Value, *_: Value) -> Value:
    """Moved, some elements certain instead."""
    return moved(key, x)


def together(key: str, x: Value, y: Value) -> Value:
    """Elements of both, side by side."""
    apart = not x.roots & y.roots
    return Value(
        "", (), x.roots | y.roots, (key,) if x.affine and y.affine else None, x.affine and y.affine,
        apart and x.independent and y.independent, x.exact and y.exact, _worst(x, y),
    )  # fmt: skip


def linear(key: str, x: Value, *_: Value) -> Value:
    return replace(
        x, line=(key,) if x.affine else None, affine=x.affine, independent=False, exact=x.exact and x.independent
    )


def mixed(key: str, x: Value, *rest: Value) -> Value:
    """Several values in a way of which only methods that know covariances can be right."""
    roots = x.roots.union(*(y.roots for y in rest))
    return Value("", (), roots, None, False, False, not roots, _worst(x, *rest))


def statistic(key: str, x: Value, *_: Value) -> Value:
    return replace(mixed(key, x), exact=x.exact and x.affine and x.independent)


def add(key: str, x: Value, y: Value) -> Value:
    """A sum: both of one line, or independent of each other."""
    if not x.roots or not y.roots:
        return x if x.roots else y
    if x.line is not None and x.line == y.line:
        return replace(x, affine=x.affine and y.affine, roots=x.roots | y.roots)
    affine = x.affine and y.affine
    apart = not x.roots & y.roots
    independent = apart and x.independent and y.independent
    return Value("", (), x.roots | y.roots, (key,) if affine and apart else None, affine and apart, independent,
                 x.exact and y.exact and apart, _worst(x, y))  # fmt: skip


def mul(key: str, x: Value, y: Value) -> Value:
    if not x.roots or not y.roots:
        return x if x.roots else y
    if x.line is not None and x.line == y.line:
        return replace(pointwise(key, x), exact=x.exact and y.exact)
    return replace(add(key, x, y), line=None, affine=False)


def larger(key: str, x: Value, y: Value) -> Value:
    if not x.roots or not y.roots:
        return pointwise(key, x if x.roots else y)
    found = mul(key, x, y)
    if found.line is not None:
        return found
    return replace(found, exact=found.exact and x.affine and y.affine)


def product(key: str, x: Value, y: Value) -> Value:
    """A sum of products."""
    if not x.roots or not y.roots:
        return linear(key, x if x.roots else y)
    found = mixed(key, x, y)
    apart = not x.roots & y.roots
    return replace(found, exact=apart and x.exact and y.exact and x.independent and y.independent)


def gated(key: str, x: Value, *_: Value) -> Value:
    """One half of a value times a function of the other."""
    return replace(mixed(key, x), exact=x.exact and x.independent and x.affine, independent=x.independent)


def noise(key: str, x: Value, *_: Value) -> Value:
    return replace(x, roots=x.roots | {key}, line=None, affine=False)


def random_slope(key: str, x: Value, *_: Value) -> Value:
    return noise(key, pointwise(key, x))


def noise_in_common(key: str, x: Value, *_: Value) -> Value:
    return replace(noise(key, x), independent=False)


EFFECTS: dict[str, Effect] = {
    function.__name__: function
    for function in (
        scaled, pointwise, moved, repeated, masked, together, linear, mixed, statistic, add, mul, larger, product,
        gated, noise, random_slope, noise_in_common,
    )
}  # fmt: skip

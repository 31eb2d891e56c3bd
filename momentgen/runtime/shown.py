"""How moments are read: printed with the digits that their size allows, as arrays, and under other packages' names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from momentgen.runtime.inputs import has_elements, readable

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Arrays", "hint", "shown"]

#: values that are printed, at most
_SHOWN: Final = 6
#: significant digits of a standard deviation, and of a number without one
_DIGITS, _ALONE = 2, 6
#: decimal places and powers of ten up to which numbers are written out
_PLACES: Final = 7


def shown(value: Any) -> str:
    """Moments as text; the tensors themselves where their numbers cannot be read.

    >>> shown_number(127.7322, 0.0711), shown_number(1.5e-9, 2e-11), shown_number(2.0, 0.0)
    ('127.732 ± 0.071', '(1.500 ± 0.020)e-09', '2 ± 0')
    """
    mean, var = tuple.__iter__(value)
    if not all(isinstance(part, Tensor) and has_elements(part) and readable(part) for part in (mean, var)):
        return f"Moments(mean={mean!r}, var={var!r})"
    if mean.shape != var.shape or not var.is_floating_point() or mean.is_complex():
        return f"Moments(mean={mean!r}, var={var!r})"
    with torch.no_grad():
        std, error = value.std, value.std_error
        means, stds = (part.reshape(-1)[:_SHOWN].tolist() for part in (mean, std))
        numbers = [shown_number(*pair) for pair in zip(means, stds, strict=True)]
        about = [str(mean.dtype).removeprefix("torch.")]
        if not mean.dim():
            text = numbers[0] if error is None else f"{numbers[0]} (± {float(error):.1g})"
        else:
            text = f"[{', '.join(numbers)}{', ...' if mean.numel() > len(numbers) else ''}]"
            about = [f"shape {tuple(mean.shape)}", *about] if mean.dim() > 1 or mean.numel() > len(numbers) else about
            sure = None if error is None else (error / std)[std > 0]
            if sure is not None and sure.numel():
                about.append(f"σ ± {float(sure.nanmedian()):.1%}")
    if value.rows is not None:
        about.append(f"controlled, {value.rows} rows")
    if value.notes:
        about.append(f"{len(value.notes)} note{'s' if len(value.notes) > 1 else ''}")
    return f"Moments({', '.join([text, *about])})"


def shown_number(mean: float, std: float) -> str:
    """A mean and its standard deviation."""
    if not (std > 0 and math.isfinite(std) and math.isfinite(mean)):
        return f"{mean:.{_ALONE}g} ± {std:.{_DIGITS}g}"
    places = _DIGITS - 1 - math.floor(math.log10(std))
    power = math.floor(math.log10(max(abs(mean), std)))
    if 0 <= places <= _PLACES and power < _PLACES:
        return f"{mean:.{places}f} ± {std:.{places}f}"
    if -_DIGITS < places < 0 and power < _PLACES:
        return f"{mean:.0f} ± {std:.0f}"
    scale, places = 10.0**power, max(places + power, 0)
    return f"({mean / scale:.{places}f} ± {std / scale:.{places}f})e{power:+03d}"


class Arrays(NamedTuple):
    """Means and standard deviations as arrays of NumPy, of one shape."""

    mean: NDArray[Any]
    std: NDArray[Any]


#: attributes that other packages have -> those of moments
_NAMES: Final = {
    "variance": "var", "stddev": "std", "std_dev": "std", "stdev": "std", "sigma": "std", "s": "std", "u": "std",
    "nominal_value": "mean", "n": "mean", "value": "mean", "loc": "mean", "scale": "std", "error": "std_error",
}  # fmt: skip

#: what answers of the default method have, and other moments have not
_OF_ANSWERS: Final = frozenset(
    ("covariance", "correlation", "quantile", "interval", "probability", "skewness", "sample", "distribution")
)


def hint(name: str) -> str:
    """What to write in the place of an attribute that moments do not have."""
    if name in _NAMES:
        return f"; did you mean {_NAMES[name]}?"
    if name in _OF_ANSWERS:
        return (
            "; answers of the default method have it: call .eval() on the network before momentgen.convert and ask its "
            f"result itself, or compute all in one function, momentgen.propagate(f, x).{name}"
        )
    if not name.startswith("_") and callable(getattr(Tensor, name, None)):
        return f"; compute it in one function, momentgen.propagate(lambda a: a.{name}(), x)"
    return ""

"""What a certificate promises, in words: for docstrings, printed certificates, the report and the site.

The words come from the certificate's data alone, so that they say what was measured.  Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["RELATIVE", "promise", "tolerance_in_a_line"]

#: what every tolerance that is not in ulp has to say of tails
RELATIVE = "This does not bound the relative error."
_TAILS = (
    "Where the exact value is smaller than the allowed error, as far out in a tail, no digit of the result need be "
    "right, and a variance may come out as 0."
)
_SMALL_MEANS = "This does not bound the mean's relative error where |m| is below 1."
_ULP = "An ulp of y is 2^(max(exponent of y, -126) - 23), the spacing of float32 numbers at y."


def promise(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """The sentences of one variant's certificate, as read from its JSON file.

    >>> for sentence in promise({"goal": {"ulp of the terms": 8.0}, "bounds": {"mean": {"ulp of the terms": 6.4}}}):
    ...     print(sentence)
    Errors are at most 8 ulp of the sum of the magnitudes of an output's terms, at least of 2^-118.
    An ulp of y is 2^(max(exponent of y, -126) - 23), the spacing of float32 numbers at y.
    Where terms cancel, the relative error is larger.
    Largest errors found: mean 6.4.
    """
    if not certificate.get("goal"):
        how = certificate.get("method")
        said = "; ".join(str(value) for value in how.values()) if isinstance(how, Mapping) else str(how)
        return (f"No bound is certified: {said}.",)
    unit, goal = next(iter(certificate["goal"].items()))
    # An old certificate may have a text for each.
    domain, method = (part if isinstance(part := certificate.get(key), Mapping) else {} for key in ("domain", "method"))
    allowed = _allowed(unit, goal, certificate.get("tolerance", {}), bool(domain.get("parameters")))
    sentences = [*allowed, _inputs(domain), _found(certificate.get("bounds", {}), unit, method.get("points"))]
    sentences += _limits(domain)
    return tuple(sentence for sentence in sentences if sentence)


def tolerance_in_a_line(certificate: Mapping[str, Any]) -> str:
    """What a goal of 1 tolerance is, of the mean and of the variance; empty for goals in ulp.

    >>> tolerance_in_a_line({"tolerance": {"mean": "1e-06*max(1, |m|)", "var": "1e-05*L^2*v", "values": {"L": 1.0}}})
    'mean 1e-06*max(1, |m|); var 1e-05*L^2*v; L = 1'
    """
    tolerance = certificate.get("tolerance", {})
    if "mean" not in tolerance:
        return ""
    numbers = [f"{name} = {value:.6g}" for name, value in tolerance.get("values", {}).items() if name != "jumps"]
    return "; ".join([f"mean {tolerance['mean']}", f"var {tolerance['var']}", *numbers])


def _allowed(unit: str, goal: float, tolerance: Mapping[str, Any], depends: bool) -> list[str]:
    """What errors may be; ``depends`` says whether sizes are those at the default parameters."""
    against = tolerance.get("against", "the exact moments")
    of = [] if against == "the exact moments" else [f"Errors are measured from {against}."]
    if unit == "ulp":
        within = f"{goal:g} ulp of the exact value, relatively {goal * 2**-23:.2g}"
        said = f"Errors are at most {within}, where that is a normal float32 number."
        return [*of, said, _ULP]
    if unit == "ulp of the terms":
        within = f"{goal:g} ulp of the sum of the magnitudes of an output's terms, at least of 2^-118"
        return [*of, f"Errors are at most {within}.", _ULP, "Where terms cancel, the relative error is larger."]
    if unit != "tolerance" or "mean" not in tolerance:
        unsaid = "this certificate does not say what that is: build the rule again"
        return [*of, f"Errors are at most {goal:g} {unit}; {unsaid}."]
    times = "" if goal == 1 else f"{goal:g} times "
    return [
        *of,
        f"Errors of the mean are at most {times}{tolerance['mean']}.",
        f"Errors of the variance are at most {times}{tolerance['var']}.",
        f"Errors of each partial derivative are at most {times}{tolerance['partials']}.",
        f"The allowed error is no less than {tolerance['least']}.",
        _symbols(tolerance, depends),
        *([_SMALL_MEANS] if tolerance["var"].endswith("*V") else [RELATIVE, _TAILS]),
    ]


def _symbols(tolerance: Mapping[str, Any], depends: bool) -> str:
    values = tolerance.get("values", {})
    said = []
    for name, meaning in tolerance.get("where", {}).items():
        numbers = [values[part] for part in name.split(", ") if part in values]
        value = ", ".join(f"{number:.6g}" for number in numbers)
        said.append(f"{name} is {meaning}" + (f" ({value}{' at the defaults' if depends else ''})" if value else ""))
    return f"Here {', '.join(said)}." if said else ""


def _found(bounds: Mapping[str, Any], unit: str, count: Any) -> str:
    found = [f"{name} {bound[unit]:.2g}" for name, bound in bounds.items() if unit in bound]
    share = " of this" if unit == "tolerance" else ""
    at = f" in a search of {count:,} points" if isinstance(count, int) else ""
    return f"Largest errors found{at}: {', '.join(found)}{share}." if found else ""


def _inputs(domain: Mapping[str, Any]) -> str:
    """For which inputs bounds hold."""
    inputs = [f"{name} {words}" for name, words in domain.items() if name.startswith(("mean", "var", "cov"))]
    return f"This holds for {'; '.join(inputs)}." if inputs else ""


def _limits(domain: Mapping[str, Any]) -> list[str]:
    """Where the domain ends, and what stands for a result beyond the range of its type."""
    nan, overflow = str(domain.get("nan", "")), str(domain.get("overflow", ""))
    said = [f"Outputs and derivatives are NaN for {nan}."] if nan not in ("", "nowhere") else []
    return [*said, *([f"A result beyond the range of its type is {overflow}."] if overflow else [])]

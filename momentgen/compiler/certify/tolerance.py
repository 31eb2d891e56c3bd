"""What an error of 1 in the unit of a variant's goal is, as data for its certificate.

:func:`tolerance_of` says of each measure of error what it allows: a formula an output, in plain ASCII, with what its
symbols stand for and their values at the default parameters.  :mod:`momentgen.promise` makes sentences of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import singledispatch
from typing import Any

from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.measure.conditional import ConditionalMeasure
from momentgen.compiler.measure.covariance import COVARIANCE, CovarianceMeasure
from momentgen.compiler.measure.covariance import PARTIAL as COVARIANCE_PARTIAL
from momentgen.compiler.measure.growth import GrowthMeasure
from momentgen.compiler.measure.inside import Inside
from momentgen.compiler.measure.moments import MEAN, MEAN_SPREAD, PARTIAL, VARIANCE, MomentsMeasure
from momentgen.compiler.strategies.elementary.entire_measure import RelativeMeasure, TermsMeasure
from momentgen.compiler.strategies.homogeneous.kink_powers import UlpOfTerms
from momentgen.compiler.strategies.rescaled import RescaledMeasure
from momentgen.compiler.strategies.settled import SettledMeasure
from momentgen.errors import BuildError
from momentgen.rule import Formula, LogisticInput, Rule

__all__ = ["tolerance_of"]

_M, _V = "the exact mean", "the input's variance, sigma its root"
_LARGEST = "{:g} of the largest value that it takes over all means at that variance"


def tolerance_of(rule: Rule, stable: Stable) -> dict[str, Any]:
    """The certificate's ``tolerance``.

    Returns:
        ``against``: what errors are taken from.  Where the unit is ``tolerance``, also ``mean`` and ``var``, or
        ``covariance``, and ``partials``, the errors allowed; ``least``, what is allowed in any case; ``where``, what
        the symbols are; ``values``, those at the default parameters, a number each, and for jumps (point, height) each.

    Raises:
        BuildError: if the variant is measured by something that has no words here.
    """
    data: dict[str, Any] = {"against": _against(rule, stable.variant)}
    if isinstance(stable.measure, UlpOfTerms):
        data["except"] = str(stable.facts.get("measured", ""))
    if stable.unit != "tolerance":
        return data
    try:
        # Jumps, and a finite range, may appear at some settings of the parameters only.
        found = [_allowed(stable.at(setting).measure) for setting in stable.settings]
    except NotImplementedError:
        cause = f"expected words for the tolerance of {type(stable.measure).__name__} in {__name__}"
        raise BuildError(rule.name, "certify", f"{cause}, found none") from None
    fullest = max(found, key=lambda said: len(said["where"]))
    said = {**fullest, "values": found[0]["values"]}
    return {"least": "2^-126", **data, **said}


def _against(rule: Rule, variant: str) -> str:
    form = rule.variants.get(variant)
    if isinstance(form, LogisticInput):
        return "the exact moments under a logistic input of this mean and variance"
    if form is None:
        return "the exact moments" if "mean" in rule.outputs else "the exact covariance"
    if isinstance(form, Formula):
        return "the variant's published formula, not the moments that it approximates"
    return "the variant's fitted formula, not the moments that it approximates"


@singledispatch
def _allowed(measure: Any) -> dict[str, Any]:
    raise NotImplementedError


@_allowed.register
def _moments(measure: MomentsMeasure) -> dict[str, Any]:
    shape, limits = _shape(measure), measure.limits
    said = _of_activation(f"{MEAN:g}*max(1, |m|) + {_steep(shape)}", shape)
    if measure.draw:  # of 0 or 1
        said["var"] = f"{VARIANCE / 4:g}"
    if limits.mean <= MEAN:
        said["mean"] = f"{limits.mean:g}"
        del said["where"]["m"]
        if measure.draw:
            said |= {"where": {}, "values": {}}
    elif limits.mean < math.inf:
        said["mean"] = f"min({limits.mean:g}, {said['mean']})"
    if limits.var < math.inf:
        said["var"] = f"{min(limits.var, VARIANCE / 4):g}" if measure.draw else f"min({limits.var:g}, {said['var']})"
    return said | {"partials": _LARGEST.format(limits.partial)}


@_allowed.register
def _growth(measure: GrowthMeasure) -> dict[str, Any]:
    jumps = {"J, a": "the height of each jump of f, and its distance from the mean in sigmas"} if measure.jumps else {}
    return {
        "mean": f"{MEAN:g}*max(1, |m|) + {MEAN_SPREAD:g}*B1*sigma",
        "var": f"{VARIANCE:g}*" + ("(B1^2*v + sum of J^2*Phi(a)*Phi(-a))" if jumps else "B1^2*v"),
        "partials": f"{PARTIAL:g} of B1, B2/2, sigma^2*B1*B2 and B1^2 + sigma*B1*B2, in the order of the bounds, "
        "and of what kinks and jumps add to them",
        "where": {
            "m": _M,
            "v": _V,
            "Bk": "the most that a branch's k-th derivative is within |mean - c| + sigma of c, by its coefficients",
            "c": "the middle of the kinks",
            **jumps,
        },
        "values": {"c": measure.centre, **({"jumps": [list(jump) for jump in measure.jumps]} if jumps else {})},
        "least": "2^-126, and (1 + v)*2^-126 of var's partials",
    }


@_allowed.register
def _settled(measure: SettledMeasure) -> dict[str, Any]:
    return _moments(measure.measure)


@_allowed.register
def _rescaled(measure: RescaledMeasure) -> dict[str, Any]:
    base, units, rescaled = measure.base, measure.units, measure.rescaled
    found = base.measure if isinstance(base, SettledMeasure) else base
    if not isinstance(found, MomentsMeasure):
        raise NotImplementedError
    shape = _shape(found)
    shape["L"] = shape["L"] * units.of("dmean_dmu")
    shape["range"] = shape["range"] * units.scale
    shape["jumps"] = [[units.centre + units.width * at, units.scale * jump] for at, jump in shape["jumps"]]
    mean, where = f"{MEAN:g}*max(1, |m|) + {_steep(shape)}", {}
    if rescaled.scale != 1 or rescaled.offset != 0:
        mean = f"max({MEAN:g}*max(A, |m - B|) + {_steep(shape)}, {MEAN:g}*|m|)"
        where = {"A": str(rescaled.scale), "B": str(rescaled.offset)}
        shape |= {"A": units.scale, "B": units.offset}
        if rescaled.offset == 0:
            mean = f"{MEAN:g}*max(A, |m|) + {_steep(shape)}"
            del where["B"], shape["B"]
    said = _of_activation(mean, shape)
    return {**said, "where": said["where"] | where}


def _shape(measure: MomentsMeasure) -> dict[str, Any]:
    jumps = [[float(at), float(jump)] for at, jump in measure.jumps]
    return {"L": float(measure.lipschitz), "range": float(measure.span), "jumps": jumps}


def _steep(shape: Mapping[str, Any]) -> str:
    """What is allowed to the mean beside its rounding."""
    return f"{MEAN_SPREAD:g}*" + ("min(L*sigma, range)" if math.isfinite(shape["range"]) else "L*sigma")


def _of_activation(mean: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Tolerances that follow from how steep f is, how far it ranges, and its jumps."""
    where = {"m": _M, "v": _V, "L": "the largest |f'|"}
    spread = "L^2*v"
    values = {name: value for name, value in shape.items() if name not in ("range", "jumps")}
    if math.isfinite(shape["range"]):
        spread, where["range"], values["range"] = "min(L^2*v, (range/2)^2)", "max f - min f", shape["range"]
    if shape["jumps"]:
        spread = f"({spread} + sum of J^2*Phi(a)*Phi(-a))"
        where["J, a"] = "the height of each jump of f, and its distance from the mean in sigmas"
        values["jumps"] = shape["jumps"]
    return {
        "mean": mean,
        "var": f"{VARIANCE:g}*{spread}",
        "partials": _LARGEST.format(PARTIAL),
        "where": where,
        "values": values,
        "least": "2^-126, and (1 + v)*2^-126 of var's partials",
    }


@_allowed.register
def _conditional(measure: ConditionalMeasure) -> dict[str, Any]:
    said = _allowed(measure.own)
    unit = "A^2" if "A" in said["where"] else "1"
    both = "those of var the sum of this for both of its terms, Var E(Y | X) and E Var(Y | X)"
    return {
        **said,
        "var": f"{said['var']} + {MEAN:g}*max({unit}, V)",
        "partials": f"{said['partials']}, {both}",
        "where": {**said["where"], "V": "the exact variance"},
    }


@_allowed.register
def _relative(measure: RelativeMeasure) -> dict[str, Any]:
    mean = f"{MEAN:g}*max(1, |m|)"
    if not measure.bounded:
        said = {"mean": mean, "var": f"{VARIANCE:g}*V", "partials": f"{PARTIAL:g} of its exact value"}
        return {**said, "where": {"m": _M, "V": "the exact variance"}, "values": {}}
    return {
        "mean": mean,
        "var": f"{VARIANCE:g}*A^2*min(b^2*v, 1)",
        "partials": _LARGEST.format(PARTIAL),
        "where": {"m": _M, "v": _V, "A, b": "f's amplitude and angular rate"},
        "values": {"A": measure.amplitude, "b": measure.rate},
    }


@_allowed.register
def _terms(measure: TermsMeasure) -> dict[str, Any]:
    return {
        "mean": f"{MEAN:g}*max(1, M0)",
        "var": f"{VARIANCE:g}*s0",
        "partials": f"{PARTIAL:g} of M1, M2/2, 2*sqrt(s0*s1) and G1 + sqrt(s0*s2), in the order of the bounds",
        "where": {
            "Mk": "the sum of the magnitudes of the terms of E of f's k-th derivative",
            "Gk": "E of the sum of the squared terms of that derivative",
            "sk": f"min(v*G(k+1), Gk), v {_V}",
        },
        "values": {},
    }


@_allowed.register
def _inside(measure: Inside) -> dict[str, Any]:
    return _allowed(measure.measure)


@_allowed.register
def _covariance(measure: CovarianceMeasure) -> dict[str, Any]:
    by_terms = measure.forward is None
    return {
        "covariance": f"{COVARIANCE:g}"
        + (" of the sum of the magnitudes of its terms" if by_terms else "*sqrt(V1*V2)"),
        "partials": f"{COVARIANCE_PARTIAL:g} of the sum of the magnitudes of its terms",
        "where": {} if by_terms else {"V1, V2": "the exact variances of f of either input"},
        "values": {},
        "least": "2^-126, and 2^-120 of partials",
    }

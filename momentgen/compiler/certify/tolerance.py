"""What an error of 1 in the unit of a variant's goal is, as data for its certificate.

Each measure of error has its own words beside its formula (``words``); :mod:`momentgen.promise` makes sentences of it.
"""

from __future__ import annotations

from typing import Any

from momentgen.compiler.ir.stable import Stable
from momentgen.compiler.strategies.homogeneous.kink_powers import UlpOfTerms
from momentgen.errors import BuildError
from momentgen.rule import Formula, LogisticInput, Rule


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
    # Jumps, and a finite range, may appear at some settings of the parameters only.
    said_at = [getattr(stable.at(setting).measure, "words", None) for setting in stable.settings]
    found = [words() for words in said_at if words is not None]
    if len(found) < len(said_at):
        cause = f"expected words for the tolerance of {type(stable.measure).__name__}, found none"
        raise BuildError(rule.name, "certify", cause)
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

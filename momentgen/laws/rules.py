"""The rules of laws whose functions are in a module per kind, put together."""

from __future__ import annotations

from momentgen.laws import composite, covariance_rules, maxima, norms, pointwise, products, statistics
from momentgen.laws.covariance import Covariance
from momentgen.laws.diagonal import Diagonal
from momentgen.laws.law import Rule

__all__ = ["diagonal_rule"]

for _module in (pointwise, products, maxima, norms, statistics, composite):
    Diagonal.RULES.update(_module.RULES)
Covariance.RULES.update(covariance_rules.RULES)


def diagonal_rule(name: str, kind: str) -> Rule | None:
    """The rule of ``Diagonal`` for a function, or None."""
    return Diagonal.RULES.get(name) or Diagonal.RULES.get(kind)

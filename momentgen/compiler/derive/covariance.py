"""The covariance of a function of one input and the same function of another: what there is to derive.

Cov(f(X1), f(X2)) of jointly normal inputs has no closed form in Phi and phi even where f's moments have: by Price's
theorem it is an integral over the correlation, of which
:mod:`momentgen.compiler.strategies.covariance.covariance_graph` says the rest.  Here is only checked what that takes
for granted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from momentgen.compiler.derive.proof import Proof
from momentgen.errors import BuildError
from momentgen.rule import Rule

__all__ = ["CovarianceDerivation", "derive_covariance"]


@dataclass(frozen=True)
class CovarianceDerivation:
    """What derive hands on for a rule whose output is a covariance.

    Attributes:
        rule: the rule; its f, in ``x``, is taken of either input.
        checks: formulas of the author's -> how they were decided; there are none.
    """

    rule: Rule
    checks: Mapping[str, Proof] = field(default_factory=dict, hash=False)


def derive_covariance(rule: Rule) -> CovarianceDerivation:
    """A rule whose output is a covariance.

    Raises:
        BuildError: if its inputs are not normal.
    """
    if rule.input != "normal":
        raise BuildError(rule.name, "derive", f"expected normal inputs for a covariance, got {rule.input}", rule.f)
    return CovarianceDerivation(rule)

"""Stage derive: a rule becomes closed forms of its moments and their partials.

The algebra lives in :mod:`.normal` and :mod:`.logistic`, that of several inputs in
:mod:`.joint`, covariances of two outputs in :mod:`.covariance`; :mod:`.proof` decides
equalities.  Nothing here looks at floating point: strategies do.
"""

from __future__ import annotations

from momentgen.compiler.derive.derivation import Derivation, derive, derive_mean
from momentgen.compiler.derive.joint import CovarianceDerivation, JointDerivation, derive_covariance, derive_joint
from momentgen.compiler.derive.proof import Proof, disprove

__all__ = [
    "CovarianceDerivation",
    "Derivation",
    "JointDerivation",
    "Proof",
    "derive",
    "derive_covariance",
    "derive_joint",
    "derive_mean",
    "disprove",
]

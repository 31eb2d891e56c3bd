"""Stage derive: a rule becomes closed forms of its moments and their partials.

The algebra lives in :mod:`.normal`, that of several inputs in :mod:`.joint`; :mod:`.proof` decides equalities.  In
:mod:`.forms` and :mod:`.rewrite` moments are written without cancellation.  Nothing here looks at floating point:
strategies do.
"""

from __future__ import annotations

from momentgen.compiler.derive.derivation import Derivation, derive, derive_mean, in_units
from momentgen.compiler.derive.joint import JointDerivation, derive_joint
from momentgen.compiler.derive.proof import disprove, grid

__all__ = ["Derivation", "JointDerivation", "derive", "derive_joint", "derive_mean", "disprove", "grid", "in_units"]

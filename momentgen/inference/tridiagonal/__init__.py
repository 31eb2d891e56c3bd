"""``Tridiagonal``: neighbouring elements of a parameter are correlated (Posch & Pilz, "Correlated Parameters ...").

The covariance of the K elements, in flattened order, is tridiagonal with variances τ²mᵢ² and one correlation ρ.  The
paper's recursion for its Cholesky factor collapses: with λ = (1 + √(1 - 4ρ²))/2 and x = (ρ/λ)² the noise is

    w_k = m_k + τ|m_k| e_k,   e_k = √d_k ξ_k + (ρ/√d_{k-1}) ξ_{k-1},   d_k = λ (1 - x^{k+2})/(1 - x^{k+1}),  d_{-1} = ∞,

ξ standard normal, and the log determinant of the correlation is K log λ + log(1 - x^{K+1}) - log(1 - x).  So sampling,
KL and all gradients take one pass over the elements.  The paper's pseudocode takes K² for gradients; that recursion is
the oracle of the tests.  d is λ to the last bit from some element on, at the latest the 1,450th for allowed ρ.

The columns of the paper's factor have the sign of m_k m_{k+1}, those here are Cholesky's; the distribution is the same.

* ``family``: the posterior.
* ``gradients``: draws, traces and log determinants with gradients by hand.
* ``correlation``: what follows from ρ.
* ``native``: draws in C.
"""

from __future__ import annotations

from momentgen.inference.tridiagonal.family import Tridiagonal

__all__ = ["Tridiagonal"]

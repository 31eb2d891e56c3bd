"""Approximate: minimax fits with a proven bound, for the stages that stabilise and lower.

=====================  ======================================================================
``remez``              minimax polynomial of a smooth function on an interval
``prove``              the same polynomial with a proven bound on its error
``J``, ``mills``       the functions most often fitted: truncated normal moments, Mills ratio
=====================  ======================================================================
"""

from momentgen.compiler.approximate.bound import BallFunction, Maximum, prove, prove_maximum
from momentgen.compiler.approximate.remez import Function, Polynomial, remez
from momentgen.compiler.approximate.special import J, J_series, mills

__all__ = [
    "BallFunction",
    "Function",
    "J",
    "J_series",
    "Maximum",
    "Polynomial",
    "mills",
    "prove",
    "prove_maximum",
    "remez",
]

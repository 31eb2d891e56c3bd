"""Approximate: minimax fits with a proven bound, for the stages that stabilise and lower.

=====================  ======================================================================
``remez``              minimax polynomial of a smooth function on an interval
``J``, ``mills``       the functions most often fitted: truncated normal moments, Mills ratio
=====================  ======================================================================
"""

from momentgen.compiler.approximate.remez import Function, Polynomial, remez
from momentgen.compiler.approximate.special import J, J_series, mills

__all__ = ["Function", "J", "J_series", "Polynomial", "mills", "remez"]

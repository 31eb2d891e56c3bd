"""Approximate: minimax fits, for the stages ``strategies`` and ``lower``.

=====================  ======================================================================
``remez``              minimax polynomial of a smooth function on an interval
``lowest_degree``      the minimax polynomial of the lowest degree that reaches a goal
``J``                  the functions most often fitted: truncated normal moments
=====================  ======================================================================
"""

from momentgen.compiler.fit.remez import Function, Polynomial, lowest_degree, remez
from momentgen.compiler.fit.special import J

__all__ = ["Function", "J", "Polynomial", "lowest_degree", "remez"]

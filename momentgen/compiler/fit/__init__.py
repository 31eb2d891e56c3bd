"""Approximate: minimax fits, for the stages ``strategies`` and ``lower``.

=====================  ======================================================================
``remez``              minimax polynomial of a smooth function on an interval
``lowest_degree``      the minimax polynomial of the lowest degree that reaches a goal
``proven_maximum``     a proven bound of a function on an interval
``fit_parameter``      one parameter of a family, by the largest divergence or error over a range
``J``, ``mills``       the functions most often fitted: truncated normal moments, Mills ratio
=====================  ======================================================================
"""

from momentgen.compiler.fit.bound import BallFunction, proven_maximum
from momentgen.compiler.fit.parametric import Objective, ParameterFit, fit_parameter
from momentgen.compiler.fit.remez import Function, Polynomial, lowest_degree, remez
from momentgen.compiler.fit.special import J, J_series, mills

__all__ = [
    "BallFunction",
    "Function",
    "J",
    "J_series",
    "Objective",
    "ParameterFit",
    "Polynomial",
    "fit_parameter",
    "lowest_degree",
    "mills",
    "proven_maximum",
    "remez",
]

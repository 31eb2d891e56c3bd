"""Approximate: minimax fits with a proven bound, for the stages that stabilise and lower.

=====================  ======================================================================
``remez``              minimax polynomial of a smooth function on an interval
``lowest_degree``      the minimax polynomial of the lowest degree that reaches a goal
``prove``              the same polynomial with a proven bound on its error
``fit_scale_mixture``  a sigmoid as a mixture of normal distribution functions, proven in value and derivatives
``fit_parameter``      one parameter of a family, by the largest divergence or error over a range
``J``, ``mills``       the functions most often fitted: truncated normal moments, Mills ratio
=====================  ======================================================================
"""

from momentgen.compiler.approximate.bound import BallFunction, Maximum, prove, prove_maximum
from momentgen.compiler.approximate.mixture import LOGISTIC, ScaleMixture, Sigmoid, prove_scale_mixture
from momentgen.compiler.approximate.mixture_fit import fit_scale_mixture
from momentgen.compiler.approximate.parametric import Objective, ParameterFit, fit_parameter, prove_parameter
from momentgen.compiler.approximate.remez import Function, Polynomial, lowest_degree, remez
from momentgen.compiler.approximate.special import J, J_series, mills

__all__ = [
    "LOGISTIC",
    "BallFunction",
    "Function",
    "J",
    "J_series",
    "Maximum",
    "Objective",
    "ParameterFit",
    "Polynomial",
    "ScaleMixture",
    "Sigmoid",
    "fit_parameter",
    "fit_scale_mixture",
    "lowest_degree",
    "mills",
    "prove",
    "prove_maximum",
    "prove_parameter",
    "prove_scale_mixture",
    "remez",
]

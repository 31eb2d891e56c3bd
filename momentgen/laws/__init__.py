"""Laws: what is known of a random value, as objects on which plain torch networks run.

- :class:`Point` is a certain value.
- :class:`Diagonal` has the mean and variance of each value.
- :class:`Channels` has the statistics of a data set.
- :class:`~momentgen.laws.weights.Weight` and :class:`~momentgen.laws.weights.Local` are random parameters.

The border (:func:`convert`, :class:`method`, :func:`noisy`) makes laws of inputs and moments of outputs.
Lower layers: the generated ops and the runtime.  Above: :mod:`momentgen.nn`.
"""

from __future__ import annotations

from momentgen.laws import rules as rules  # registers the rules
from momentgen.laws.activations import ACTIVATIONS, activation, register_activation
from momentgen.laws.border import Border, inside, run, set_method
from momentgen.laws.controlled import propagate as _controlled  # noqa: F401 - registers the method
from momentgen.laws.convert import convert, propagate
from momentgen.laws.diagonal import Diagonal, Point, diagonal, point
from momentgen.laws.law import Law
from momentgen.laws.methods import TrainingModeWarning, method
from momentgen.laws.noisy_values import noisy
from momentgen.laws.notes import AccuracyWarning, listening
from momentgen.laws.values import as_moments, certain, draw, joint, lower

__all__ = [
    "ACTIVATIONS", "AccuracyWarning", "Border", "Diagonal", "Law", "Point", "TrainingModeWarning", "activation",
    "as_moments", "certain", "convert", "diagonal", "draw", "inside", "joint", "listening", "lower", "method",
    "noisy", "point", "propagate", "register_activation", "run", "set_method",
]  # fmt: skip

"""scikit-learn estimators of assumed density filtering: probabilistic and expectation backpropagation."""

from __future__ import annotations

from momentgen.inference.estimators.filtering import FilterClassifier, FilterRegressor


class PBPRegressor(FilterRegressor):
    """Regression by probabilistic backpropagation (Hernández-Lobato & Adams 2015).

    Args:
        hidden: widths of the hidden layers of ReLU units; a number is the width of one.  ``()`` is a linear model with
            its exact posterior; its noise and prior scale have the largest evidence.  None takes two layers of 50, or
            none, whichever predicts held-out rows better.
        passes: how often :meth:`fit` goes over the data.  None takes the number that predicts held-out rows best.
        noise: shape and rate of the gamma law of the noise precision, for targets in standard units; the shape above
            1.
        members: networks of an ensemble that run as one batch; predictions are those of their mixture.
        prior: shape and rate of the gamma law of the weights' prior precision; the shape above 1.
        learn_prior: whether that law is learnt; labels that a network separates ask for ever larger weights.
        spread: standard deviation of the weights' first means; None, as published, is 1/√(inputs + 1) a layer.  Without
            hidden layers they are 0.
        calibrate: scale σ, and make intervals, by held-out rows.  ``cv`` fits up to five more models, each without a
            fifth of the rows, until 1,000 rows were held out; ``split`` stops after 200.  A splitter of scikit-learn,
            or a list of pairs (rows to fit, rows to predict), keeps groups or later rows together.  None takes the
            predictive distribution as it is, as do less than 20 rows.
        dtype: ``float64`` or ``float32``, of weights and data.
        progress: show a bar.
        random_state: of the first means, the order of the data and the samples.

    Attributes:
        filter_: the :class:`~momentgen.inference.adf.DensityFilter`, where there are hidden layers.
        line_: the :class:`~momentgen.inference.linear.LinearPosterior`, where there are none.
        hidden_: widths of the hidden layers.
        passes_: passes of :meth:`fit`.
        skipped_: updates of weights, noise and prior that were skipped to keep variances positive, counted.

    Raises:
        InputError: in ``fit``, for arguments other than these.
        MissingCompilerError: in ``fit``, on a machine without a C compiler and without a wheel's kernels.
        FloatingPointError: in ``fit``, where the filter has diverged.  Then its last pass predicts the data worse than
            a standard normal distribution, by one nat per target.

    >>> import numpy as np
    >>> x = np.linspace(-2, 2, 100)[:, None]
    >>> model = PBPRegressor(hidden=(20,), passes=10, random_state=0).fit(x, 3 * x[:, 0])
    >>> mean, std = model.predict([[1.0]], return_std=True)
    >>> bool(abs(mean[0] - 3) < 0.2), bool(std[0] < 0.5)
    (True, True)
    """

    _rule = "pbp"


class EBPRegressor(FilterRegressor):
    """Regression by expectation backpropagation with ReLU (Soudry, Hubara & Meir 2014; Ghosh et al. 2016).

    For networks of up to three hidden layers: deeper ones may learn nothing.

    Arguments, attributes and errors are those of :class:`PBPRegressor`; it differs in how the weights move (see
    ``momentgen/inference/adf/filter.c``).
    """

    _rule = "ebp"
    _advice = "fewer hidden layers, or PBP in place of EBP,"


class PBPClassifier(FilterClassifier):
    """Classification by probabilistic backpropagation (Ghosh, Delle Fave & Yedidia 2016).

    Other arguments, and attributes, are those of :class:`PBPRegressor`; without hidden layers it has a ``filter_`` too.

    Args:
        likelihood: ``probit`` is for two classes.  ``sampled`` is a softmax with log Z by samples, and ``bound`` one
            with a lower bound of log Z.  ``auto`` is ``probit`` for two classes and ``sampled`` for more.
        samples: draws of the outputs, in each update by ``sampled`` and in predictions by softmax.
        class_weight: label -> how often its rows count, or ``balanced``; None for once.

    Raises:
        InputError: in ``fit``, for arguments other than these.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> model = PBPClassifier(hidden=(20,), passes=10, random_state=0).fit(x, y)
    >>> bool(model.score(x, y) > 0.9)
    True
    """

    _rule = "pbp"


class EBPClassifier(FilterClassifier):
    """Classification by expectation backpropagation with ReLU (Soudry, Hubara & Meir 2014; Ghosh et al. 2016).

    Arguments, attributes and errors are those of :class:`PBPClassifier`; it differs in how the weights move (see
    ``momentgen/inference/adf/filter.c``).
    """

    _rule = "ebp"

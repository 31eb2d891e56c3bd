"""All estimators with settings of a quick fit, and data for them."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_friedman1

from momentgen.inference import (
    BowTieRegressor,
    CorrelatedClassifier,
    CorrelatedRegressor,
    EBPClassifier,
    EBPRegressor,
    PBPClassifier,
    PBPRegressor,
    VBPClassifier,
    VBPRegressor,
)

_FILTER: dict[str, Any] = {"hidden": (10,), "passes": 10, "members": 1}
#: kind -> settings of a quick fit
QUICK: dict[Any, dict[str, Any]] = {
    PBPRegressor: _FILTER,
    EBPRegressor: _FILTER,
    VBPRegressor: {"hidden": (16,), "epochs": 25, "lr": 0.04, "propagation": "ap2"},
    CorrelatedRegressor: {"hidden": (16,), "epochs": 25, "lr": 0.04, "samples": 5},
    BowTieRegressor: {"hidden": (5,), "burn_in": 20, "draws": 20, "start": "random"},
    PBPClassifier: _FILTER,
    EBPClassifier: _FILTER,
    VBPClassifier: {"hidden": (16,), "epochs": 12, "lr": 0.04, "propagation": "ap2"},
    CorrelatedClassifier: {"hidden": (16,), "epochs": 12, "lr": 0.04, "samples": 5},
}
REGRESSORS = [kind for kind in QUICK if "Regressor" in kind.__name__]
CLASSIFIERS = [kind for kind in QUICK if kind not in REGRESSORS]
FILTERS = [kind for kind in QUICK if QUICK[kind] is _FILTER]
BY_BOUND = [kind for kind in QUICK if "epochs" in QUICK[kind]]


def every(kinds: Any = tuple(QUICK)) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


def quick(kind: Any, **options: Any) -> Any:
    """One that is not calibrated."""
    plain = {"calibrate": None} if kind in REGRESSORS else {}
    return kind(**{**QUICK[kind], "random_state": 0, **plain, **options})


def line(rows: int, features: int = 2, seed: int = 0, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, features))
    return x, x[:, 0] + noise * draw.normal(size=rows)


def friedman(kind: Any, rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Targets of Friedman's first function, or whether they are high or low."""
    x, y = make_friedman1(rows, random_state=0)
    return (x, y) if kind in REGRESSORS else (x, np.where(y > np.median(y), "high", "low"))


def answers(model: Any, x: Any) -> np.ndarray:
    """Means and standard deviations, or probabilities, which are finite and make sense."""
    if type(model) in REGRESSORS:
        found = np.stack(model.predict(x, return_std=True))
        assert (found[1] > 0).all()
    else:
        found = model.predict_proba(x)
        np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    assert np.isfinite(found).all()
    return found

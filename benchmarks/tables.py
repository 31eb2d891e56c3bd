"""Estimators at their defaults on 12 tables that nobody tuned on, beside a constant, scikit-learn and conformal trees.

    python benchmarks/tables.py [--sets moons iris] [--models PBP EBP] [--splits 4] [--out tables.json]
    python benchmarks/tables.py --table    # the tables of docs/results/tables.md, from the results on disk

The list was committed before any figure of it was known.  Each table ships with scikit-learn or follows from a formula.
A quarter of the rows is for testing.  A run goes on from the results on disk, a row for each split.

    rmse | accuracy    on the test data, over the targets' standard deviation
    nll, crps          mean negative log-likelihood and continuous ranked probability score, in the same unit
    cover, width       of intervals of 95 %
    seconds            of fit, of the processor

Trees have conformal intervals: a quarter of their rows is held out, and half of the width is a quantile of its errors.
Their law is normal about the mean, as wide as these errors.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from _common import RESULTS, console, write
from estimators import deviation, models, of_classes
from scipy.stats import norm
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import (
    load_breast_cancer,
    load_iris,
    load_wine,
    make_classification,
    make_friedman2,
    make_friedman3,
    make_moons,
    make_sparse_uncorrelated,
    make_swiss_roll,
)
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.model_selection import train_test_split

LEVELS = np.linspace(0.005, 0.995, 100)
OURS = ("PBP", "EBP", "VBP", "Correlated", "BowTie")


def borehole(seed: int, rows: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Water through a borehole by eight features, without noise (Harper & Gupta 1983)."""
    low = np.array([0.05, 100, 63070, 990, 63.1, 700, 1120, 9855])
    high = np.array([0.15, 50000, 115600, 1110, 116, 820, 1680, 12045])
    x = np.random.default_rng(seed).uniform(low, high, (rows, 8))
    radius, reach, upper, upper_head, lower, lower_head, length, conductivity = x.T
    log = np.log(reach / radius)
    ratio = 2 * length * upper / (log * radius**2 * conductivity)
    return x, 2 * math.pi * upper * (upper_head - lower_head) / (log * (1 + ratio + upper / lower))


def piston(seed: int, rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Cycle time of a piston by seven features, with noise of 0.03 s (Kenett & Zacks 1998)."""
    low, high = np.array([30, 0.005, 0.002, 1000, 9e4, 290, 340]), np.array([60, 0.02, 0.01, 5000, 11e4, 296, 360])
    draw = np.random.default_rng(seed)
    x = draw.uniform(low, high, (rows, 7))
    weight, area, volume, spring, pressure, ambient, gas = x.T
    force = pressure * area + 19.62 * weight - spring * volume / area
    place = area / (2 * spring) * (np.sqrt(force**2 + 4 * spring * pressure * volume * ambient / gas) - force)
    cycle = 2 * math.pi * np.sqrt(weight / (spring + area**2 * pressure * volume * ambient / (gas * place**2)))
    return x, cycle + 0.03 * draw.normal(size=rows)


def _column(table: Any, feature: int, others: slice) -> tuple[np.ndarray, np.ndarray]:
    """One feature of a table by others of it."""
    return np.delete(table.data, feature, 1)[:, others], table.data[:, feature]


REGRESSIONS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "friedman2": lambda seed: make_friedman2(300, noise=125.0, random_state=seed),
    "friedman3": lambda seed: make_friedman3(300, noise=0.1, random_state=seed),
    "swiss roll": lambda seed: make_swiss_roll(260, noise=0.3, random_state=seed),
    "sparse": lambda seed: make_sparse_uncorrelated(120, 10, random_state=seed),
    "borehole": borehole,
    "piston": piston,
    "wine's alcohol": lambda seed: _column(load_wine(), 0, slice(None)),
    "iris's petal width": lambda seed: _column(load_iris(), 3, slice(None)),
    "worst smoothness": lambda seed: _column(load_breast_cancer(), 24, slice(0, 10)),
}
CLASSIFICATIONS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "moons": lambda seed: make_moons(200, noise=0.25, random_state=seed),
    "iris": lambda seed: load_iris(return_X_y=True),
    "wide": lambda seed: make_classification(130, 300, n_informative=10, random_state=seed),
}
SETS = {**REGRESSIONS, **CLASSIFICATIONS}


class Conformal(BaseEstimator):  # type: ignore[misc]
    """A regressor with intervals by a quarter of the rows, which it is not fitted to."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, x: Any, y: Any) -> Self:
        x, held, y, targets = train_test_split(x, y, test_size=0.25, random_state=0)
        self.model_ = clone(self.model).fit(x, y)
        self.errors_ = np.sort(np.abs(self.model_.predict(held) - targets))
        return self

    def predict(self, x: Any, return_std: bool = False) -> Any:
        mean = self.model_.predict(x)
        return (mean, np.full(len(mean), np.sqrt(np.mean(self.errors_**2)))) if return_std else mean

    def half_width(self, coverage: float) -> float:
        return float(self.errors_[min(math.ceil((len(self.errors_) + 1) * coverage), len(self.errors_)) - 1])


class Constant(BaseEstimator):  # type: ignore[misc]
    """The mean and the standard deviation of the targets."""

    def fit(self, x: Any, y: Any) -> Self:
        self.mean_, self.std_ = np.mean(y), np.std(y, ddof=1)
        return self

    def predict(self, x: Any, return_std: bool = False) -> Any:
        mean = np.full(len(x), self.mean_)
        return (mean, np.full(len(x), self.std_)) if return_std else mean


def all_models(classes: int, features: int) -> dict[str, Any]:
    found = models(classes, features)
    del found["GP-RBF"]
    if classes:
        return found | {"HGB": HistGradientBoostingClassifier(random_state=0), "Constant": DummyClassifier()}
    boosted, forest = HistGradientBoostingRegressor(random_state=0), RandomForestRegressor(random_state=0)
    return found | {"Forest": Conformal(forest), "HGB": Conformal(boosted), "Constant": Constant()}


def of_regression(model: Any, x: Any, y: Any) -> dict[str, float]:
    if hasattr(model, "predict_quantiles"):
        mean, quantiles = model.predict(x), model.predict_quantiles(x, LEVELS)
        (low, high), nll = model.predict_interval(x, 0.95), -float(model.log_prob(x, y).mean())
    else:
        mean, std = deviation(model, x)
        quantiles = mean + norm.ppf(LEVELS)[:, None] * std
        half = model.half_width(0.95) if isinstance(model, Conformal) else norm.ppf(0.975) * std
        low, high, nll = mean - half, mean + half, -float(norm.logpdf(y, mean, std).mean())
    off = y - quantiles
    crps = 2 * np.maximum(LEVELS[:, None] * off, (LEVELS[:, None] - 1) * off).mean()
    cover, width = np.mean((low <= y) & (y <= high)), np.mean(high - low)
    return {
        "rmse": float(np.sqrt(np.mean((mean - y) ** 2))),
        "nll": nll,
        "crps": float(crps),
        "cover": float(cover),
        "width": float(width),
    }


def run(name: str, model: str, number: int) -> dict[str, Any]:
    """One row of the results."""
    x, y = SETS[name](number)
    classes = len(np.unique(y)) if name in CLASSIFICATIONS else 0
    y = y if classes else (y - y.mean()) / y.std()
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.25, random_state=number, stratify=y if classes else None)
    return measured(model, classes, x, y, x_test, y_test)


def measured(model: str, classes: int, x: Any, y: Any, x_test: Any, y_test: Any) -> dict[str, Any]:
    """Figures of one fit."""
    made = clone(all_models(classes, x.shape[1])[model])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        began = time.process_time()
        try:
            made.fit(x, y)
        except (FloatingPointError, ValueError) as error:
            return {"failed": str(error)}
        seconds = time.process_time() - began
    split = argparse.Namespace(x_test=x_test, y_test=y_test)
    row = of_classes(made, split) if classes else of_regression(made, x_test, y_test)
    reasons = sorted({str(one.message) for one in said if one.category.__name__ == "ConvergenceWarning"})
    return {**row, "seconds": seconds, "warnings": reasons}


Rows = dict[str, dict[str, list[dict[str, Any]]]]


def found_rows() -> Rows:
    """Table -> estimator -> rows of its splits, with a constant's NLL of the same split; all but refused fits."""
    rows = json.loads((RESULTS / "tables.json").read_text(encoding="utf-8"))
    found: Rows = {name: {} for name in SETS}
    for key, row in rows.items():
        name, model, number = key.split(" | ")
        if "failed" not in row:
            constant = rows[f"{name} | Constant | {number}"]["nll"]
            found[name].setdefault(model, []).append(row | {"constant": constant})
    return found


def mean(rows: list[dict[str, Any]], figure: str) -> float:
    return float(np.mean([row[figure] for row in rows]))


def summary(found: Rows) -> str:
    """Each of ours beside all others: how often at most one is ahead, least and most coverage of a table, failures."""
    heads = ["", "tables", "splits", "first", "first or second", "least", "most", "worse than constant", "in silence"]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for own in OURS:
        held = {name: by_model[own] for name, by_model in found.items() if own in by_model}
        places, covers, lost = [], [], []
        for name, rows in held.items():
            rivals = [part[: len(rows)] for model, part in found[name].items() if model not in OURS]
            places.append(sum(mean(part, "nll") < mean(rows, "nll") for part in rivals))
            covers += [mean(rows, "cover")] if name in REGRESSIONS else []
            lost += [row for row in rows if row["nll"] >= row["constant"]]
        if held:
            counts = [len(held), sum(map(len, held.values())), places.count(0), sum(place < 2 for place in places)]
            failures = [len(lost), sum(not row["warnings"] for row in lost)]
            ends = [f"{min(covers):.3f}", f"{max(covers):.3f}"] if covers else ["", ""]
            lines.append(f"| {' | '.join([own, *map(str, counts), *ends, *map(str, failures)])} |")
    return "\n".join([*lines, "", ""])


def table() -> str:
    """Means over the splits, in order of the likelihood, best first."""
    found, lines = found_rows(), []
    for name, by_model in found.items():
        figures = ("accuracy", "nll") if name in CLASSIFICATIONS else ("rmse", "nll", "crps", "cover", "width")
        heads = [name, "splits", *figures, "seconds", "warned"]
        lines += [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
        for model, rows in sorted(by_model.items(), key=lambda item: mean(item[1], "nll")):
            means = [f"{mean(rows, figure):.3f}" for figure in figures]
            warned = str(sum(bool(row["warnings"]) for row in rows))
            cells = [model, str(len(rows)), *means, f"{mean(rows, 'seconds'):.1f}", warned]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return summary(found) + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--models", nargs="+", help="all by default")
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--out", default="tables.json")
    parser.add_argument("--table", action="store_true", help="print the tables of the page, and measure nothing")
    arguments = parser.parse_args()
    if arguments.table:
        sys.stdout.write(table())
        return
    torch.set_num_threads(1)
    path = RESULTS / arguments.out
    for number in range(arguments.splits):
        for name in arguments.sets:
            for model in all_models(2 * (name in CLASSIFICATIONS), 1):
                key = f"{name} | {model} | {number}"
                rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
                if key not in rows and (not arguments.models or model in arguments.models):
                    rows[key] = run(name, model, number)
                    console.print(key, rows[key])
                    write(path, dict(sorted(rows.items())))


if __name__ == "__main__":
    main()

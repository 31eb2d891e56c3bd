"""Estimators beside those of scikit-learn and others, at their defaults: errors, likelihoods, coverage, seconds.

    python benchmarks/estimators.py --data DIR                        # DIR holds uci/*.npz
    python benchmarks/estimators.py --data DIR --sets sine friedman1 --models PBP GP-RBF

Every model has its defaults; those of scikit-learn stand behind a StandardScaler, and a GP has 2,000 rows at most.
Each split is one row of ``benchmarks/results/estimators.json``, written when it is done; a run goes on from there.

    rmse | accuracy    on the test data, in the targets' unit
    nll                mean negative log-likelihood of the test data, in the targets' unit
    cover              share of the test data within the intervals of 50, 90 and 95 %
    seconds            of fit, by the clock and of the processor, of which the table has the latter

NGBoost and laplace-torch take part where they are installed (``pip install ngboost laplace-torch``).
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import RESULTS, write
from _other_estimators import LaplaceClassifier, LaplaceRegressor, installed
from _uci import Split, splits
from rich.console import Console
from rich.table import Table
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine, make_friedman1
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from momentgen import inference

LEVELS = (0.5, 0.9, 0.95)
SPLITS = 4
REGRESSIONS = ("diabetes", "friedman1", "sine", "energy", "concrete", "yacht", "kin8nm")
CLASSIFICATIONS = ("breast cancer", "wine", "digits")


def sine(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A sine whose noise grows from 0.02 to 0.5 of its amplitude."""
    draw = np.random.default_rng(seed)
    x = draw.uniform(-3, 3, (400, 1))
    return x, np.sin(2 * x[:, 0]) + (0.02 + 0.08 * (x[:, 0] + 3)) * draw.normal(size=400)


def data(name: str, number: int, folder: Path) -> Split:
    """The training and test data of one split."""
    made: dict[str, Callable[[], Any]] = {
        "diabetes": lambda: load_diabetes(return_X_y=True),
        "friedman1": lambda: make_friedman1(500, noise=1.0, random_state=number),
        "sine": lambda: sine(number),
        "breast cancer": lambda: load_breast_cancer(return_X_y=True),
        "wine": lambda: load_wine(return_X_y=True),
        "digits": lambda: load_digits(return_X_y=True),
    }
    if name in made:
        x, y = made[name]()
        x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=number)
        return Split(x_train, y_train, x_test, y_test)
    for k, one in enumerate(splits(folder, name)):
        if k == number:
            return one
    raise SystemExit(f"{name} has no split {number}")


def process(ard: bool, features: int, classes: bool) -> Any:
    scales = np.ones(features) if ard else 1.0
    kernel = ConstantKernel(1.0) * RBF(scales, (1e-2, 1e3))
    if classes:
        return make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel, random_state=0))
    noisy = kernel + WhiteKernel(0.1, (1e-6, 10))
    return make_pipeline(StandardScaler(), GaussianProcessRegressor(noisy, normalize_y=True, random_state=0))


def models(classes: int, features: int) -> dict[str, Any]:
    """Models by name, as their users would make them, for a number of classes, 0 for a regression."""
    ours = ("PBP", "EBP", "VBP", "Correlated") if classes else ("PBP", "EBP", "VBP", "Correlated", "BowTie")
    kind = "Classifier" if classes else "Regressor"
    found = {name: getattr(inference, name + kind)(random_state=0) for name in ours}
    found |= {"GP-RBF": process(False, features, classes > 0), "GP-ARD": process(True, features, classes > 0)}
    if classes:
        found["Logistic"] = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        found["Forest"] = RandomForestClassifier(random_state=0)
    else:
        found["BayesianRidge"] = make_pipeline(StandardScaler(), BayesianRidge())
        found["Forest"] = RandomForestRegressor(random_state=0)
    if installed("ngboost"):
        import ngboost

        found["NGBoost"] = boosted(ngboost, classes)
    if installed("laplace"):
        found["Laplace"] = LaplaceClassifier() if classes else LaplaceRegressor()
    return found


def boosted(ngboost: Any, classes: int) -> Any:
    if not classes:
        return ngboost.NGBRegressor(verbose=False, random_state=0)
    return ngboost.NGBClassifier(ngboost.distns.k_categorical(classes), verbose=False, random_state=0)


def of_regression(model: Any, split: Split) -> dict[str, Any]:
    """Errors of a fitted regressor; what has no density gets a normal one."""
    x, y = split.x_test, split.y_test
    if hasattr(model, "predict_interval"):
        mean, intervals = model.predict(x), [model.predict_interval(x, level) for level in LEVELS]
        nll = -float(model.log_prob(x, y).mean())
    else:
        mean, std = deviation(model, x)
        intervals = [norm.interval(level, mean, std) for level in LEVELS]
        nll = -float(norm.logpdf(y, mean, std).mean())
    cover = [float(np.mean((low <= y) & (y <= high))) for low, high in intervals]
    return {"rmse": float(np.sqrt(np.mean((mean - y) ** 2))), "nll": nll, "cover": cover}


def deviation(model: Any, x: Any) -> tuple[Any, Any]:
    if isinstance(model, RandomForestRegressor):  # the spread of its trees
        trees = np.stack([tree.predict(x) for tree in model.estimators_])
        return trees.mean(0), np.maximum(trees.std(0), 1e-6)
    if type(model).__name__ == "NGBRegressor":
        found = model.pred_dist(x).params
        return found["loc"], found["scale"]
    return model.predict(x, return_std=True)  # type: ignore[no-any-return]


def of_classes(model: Any, split: Split) -> dict[str, Any]:
    """Errors of a fitted classifier."""
    y = split.y_test
    if hasattr(model, "log_prob"):
        logs = model.log_prob(split.x_test, y)
    else:
        found = model.predict_proba(split.x_test)
        logs = np.log(np.maximum(found[np.arange(len(y)), np.searchsorted(model.classes_, y)], 1e-15))
    return {"accuracy": float(np.mean(model.predict(split.x_test) == y)), "nll": -float(np.mean(logs))}


def jobs(arguments: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    for name in arguments.sets:
        for number in range(arguments.splits):
            for model in models(int(name in CLASSIFICATIONS) * 2, 1):
                if not arguments.models or model in arguments.models:
                    yield name, model, number


def run(name: str, model: str, number: int, folder: Path) -> dict[str, Any]:
    split = data(name, number, folder)
    classes = len(np.unique(split.y_train)) if name in CLASSIFICATIONS else 0
    made = clone(models(classes, split.x_train.shape[1])[model])
    if model.startswith("GP") and len(split.y_train) > 2000:
        chosen = np.random.default_rng(number).choice(len(split.y_train), 2000, replace=False)
        split = replace(split, x_train=split.x_train[chosen], y_train=split.y_train[chosen])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        started, busy = time.perf_counter(), time.process_time()
        try:
            made.fit(split.x_train, split.y_train)
        except (FloatingPointError, ValueError) as error:
            return {"failed": str(error)}
        seconds = time.perf_counter() - started, time.process_time() - busy
    row = of_classes(made, split) if classes else of_regression(made, split)
    kinds = sorted({warning.category.__name__ for warning in said})
    return row | {"seconds": seconds[0], "processor_seconds": seconds[1], "warnings": kinds}


def show(rows: dict[str, Any], console: Console) -> None:
    for name in (*REGRESSIONS, *CLASSIFICATIONS):
        own = {key: row for key, row in rows.items() if key.startswith(f"{name} | ") and "failed" not in row}
        if not own:
            continue
        error = "accuracy" if name in CLASSIFICATIONS else "rmse"
        table = Table(title=name, title_justify="left")
        for column in ("model", "splits", error, "nll", "within 50, 90, 95 %", "processor seconds"):
            table.add_column(column, justify="left" if column == "model" else "right")
        by_model: dict[str, list[Any]] = {}
        for key, row in own.items():
            by_model.setdefault(key.split(" | ")[1], []).append(row)
        for model, found in sorted(by_model.items(), key=lambda item: np.mean([row["nll"] for row in item[1]])):
            cover = np.mean([row.get("cover", [np.nan] * 3) for row in found], 0)
            table.add_row(
                model,
                str(len(found)),
                f"{np.mean([row[error] for row in found]):.4g}",
                f"{np.mean([row['nll'] for row in found]):.3f}",
                " ".join(f"{value:.2f}" for value in cover),
                f"{np.mean([row['processor_seconds'] for row in found]):.1f}",
            )
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with uci/*.npz")
    parser.add_argument("--sets", nargs="+", default=[*REGRESSIONS, *CLASSIFICATIONS])
    parser.add_argument("--models", nargs="+", help="all by default")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--out", type=Path, default=RESULTS / "estimators.json")
    parser.add_argument("--show", action="store_true", help="show what there is, run nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=None if Console().is_terminal else 120)
    rows: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name, model, number in () if arguments.show else jobs(arguments):
        key = f"{name} | {model} | {number}"
        if key in rows:
            continue
        rows[key] = run(name, model, number, arguments.data)
        console.print(key, rows[key])
        write(arguments.out, dict(sorted(rows.items())))
    show(rows, console)


if __name__ == "__main__":
    main()

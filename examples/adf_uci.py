"""Nine UCI sets by probabilistic and expectation backpropagation (table 3 of the paper's supplement).

All splits of a set are one batch of replicates of the filter, each standardised by its own training data: two, four and
five hidden layers ("5 layers" in the table may mean either) of 50 units (protein 100), 40 passes, fixed beforehand.
Root mean squared error and log-likelihood of the test data, in the targets' own units, ± standard error over splits.

    python examples/adf_uci.py --data DIR                       # DIR holds uci/*.npz
    python examples/adf_uci.py --data DIR --methods pbp --depths 2

Results are written after every set; a run that was interrupted goes on where it stopped (--fresh starts anew).
Source: Ghosh, Delle Fave & Yedidia 2016, Assumed Density Filtering Methods for Learning Bayesian Neural Networks,
supplement, table 3.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from _common import Results, wide_console
from _uci import SETS, splits
from rich.console import Console
from rich.table import Table
from sklearn.preprocessing import StandardScaler

from momentgen.inference.adf import DensityFilter
from momentgen.inference.likelihood import Gamma, Gaussian

#: sets, small ones first
ORDER = ("yacht", "boston", "energy", "concrete", "wine", "kin8nm", "power", "naval", "protein")
#: method, layers as the paper counts them -> its test RMSE and what it gives after ±; one number where it has no more
PAPER = {
    ("pbp", "2"): {
        "boston": "2.79 ± 0.16", "concrete": "5.24 ± 0.11", "energy": "0.90 ± 0.04", "kin8nm": "0.07 ± 0.00",
        "naval": "0.003 ± 0.00", "power": "4.03 ± 0.03", "protein": "4.25 ± 0.02", "wine": "0.64 ± 0.00",
        "yacht": "0.85 ± 0.05",
    },
    ("ebp", "2"): {
        "boston": "3.14 ± 0.93", "concrete": "5.30 ± 0.77", "energy": "1.38 ± 0.17", "kin8nm": "0.07 ± 0.22",
        "naval": "0.007 ± 0.00", "power": "4.21 ± 0.23", "protein": "2.14 ± 0.17", "wine": "0.71 ± 0.06",
        "yacht": "1.14 ± 0.45",
    },
    ("pbp", "5"): {
        "boston": "3.08 ± 0.15", "concrete": "5.96 ± 0.16", "energy": "1.18 ± 0.06", "kin8nm": "0.08 ± 0.00",
        "naval": "0.004 ± 0.00", "power": "4.08 ± 0.04", "protein": "3.97 ± 0.04", "wine": "0.64 ± 0.01",
        "yacht": "1.71 ± 0.23",
    },
    ("ebp", "5"): {
        "boston": "9.33 ± 1.0", "concrete": "6.33 ± 0.91", "energy": "3.54 ± 3.03", "kin8nm": "0.18 ± 0.09",
        "naval": "0.007 ± 0.00", "power": "4.56 ± 0.25", "protein": "2.04 ± 0.15", "wine": "0.82 ± 0.04",
        "yacht": "5.58 ± 5.77",
    },
}  # fmt: skip


def standard_error(values: torch.Tensor) -> float:
    return (values.std() / len(values) ** 0.5).item()


def run(name: str, method: str, depth: int, arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    """Filter all splits of a set at once; their test errors and log-likelihoods."""
    parts: list[tuple[np.ndarray, ...]] = []
    for split in splits(arguments.data, name):
        x, y = StandardScaler().fit(split.x_train), StandardScaler().fit(split.y_train[:, None])
        standard = (x.transform(split.x_train), y.transform(split.y_train[:, None]))
        parts.append((*standard, x.transform(split.x_test), split.y_test[:, None], y.mean_, y.scale_))
    x_train, y_train, x_test, y_test, mean, scale = (
        torch.tensor(np.stack(arrays)) for arrays in zip(*parts, strict=True)
    )
    net = DensityFilter(
        (x_train.shape[2], *[100 if name == "protein" else 50] * depth, 1),
        Gaussian(precision=Gamma(6.0, 6.0)),
        rule=method,
        replicates=len(parts),
        seed=arguments.seed,
    )
    started = time.perf_counter()
    console.print(f"{method.upper()}, {depth} hidden layers, {name}: {len(parts)} splits of {x_train.shape[1]} data")
    net.fit(x_train, y_train, arguments.passes, progress=console.is_terminal)
    seconds = time.perf_counter() - started
    found = net.output(x_test)
    off = found.mean * scale[:, None] + mean[:, None] - y_test
    var = (found.var + net.noise_var[:, None, None]) * scale[:, None].square()
    rmse = off.square().mean((1, 2)).sqrt()
    log_prob = -0.5 * (off.square() / var + (2 * torch.pi * var).log()).mean((1, 2))
    return {
        "rmse": rmse.mean().item(),
        "rmse_se": standard_error(rmse),
        "log_prob": log_prob.mean().item(),
        "log_prob_se": standard_error(log_prob),
        "seconds": seconds,
        "microseconds_an_update": 1e6 * seconds / (arguments.passes * x_train[..., 0].numel()),
        "skipped_weights_noise_prior": net.skipped.sum(0).tolist(),
    }


def of_mean(name: str, data: Path) -> float:
    """RMSE over the splits where the training targets' mean is all that is predicted."""
    errors = [np.sqrt(np.mean((one.y_test - one.y_train.mean()) ** 2)) for one in splits(data, name)]
    return float(np.mean(errors))


def show(results: Results, arguments: argparse.Namespace, console: Console) -> None:
    for method in arguments.methods:
        for depth in arguments.depths:
            rows = results["sets"]
            named = "5" if depth > 2 else "2"
            table = Table(title=f"{method.upper()}, {depth} hidden layers", title_justify="left")
            for column in ("set", f"RMSE, paper ({named} layers)", "RMSE", "log-likelihood", "seconds", "µs an update"):
                table.add_column(column, justify="left" if column == "set" else "right")
            for name in ORDER:
                row = rows.get(f"{method} | {depth} | {name}")
                if row:
                    digits = 4 if name in ("kin8nm", "naval") else 3
                    table.add_row(
                        name,
                        PAPER[method, named][name],
                        f"{row['rmse']:.{digits}f} ± {row['rmse_se']:.{digits}f}",
                        f"{row['log_prob']:.3f} ± {row['log_prob_se']:.3f}",
                        f"{row['seconds']:.0f}",
                        f"{row['microseconds_an_update']:.1f}",
                    )
            console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with uci/*.npz")
    parser.add_argument("--methods", nargs="+", choices=("pbp", "ebp"), default=["pbp", "ebp"])
    parser.add_argument("--depths", nargs="+", type=int, default=[2, 4, 5], help="hidden layers")
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=sorted(SETS), default=list(ORDER), help="sets")
    parser.add_argument("--show", action="store_true", help="print what there is, run nothing")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "adf_uci.json")
    arguments = parser.parse_args()
    console = wide_console()
    settings: dict[str, object] = {
        "passes": arguments.passes, "seed": arguments.seed, "dtype": "float64", "units": "50, protein 100",
        "noise": [6.0, 6.0], "prior": [6.0, 6.0],
    }  # fmt: skip
    results = Results(arguments.out, settings, ("sets",), arguments.fresh, console)
    for name in arguments.only:
        if f"mean | {name}" not in results["sets"] and not arguments.show:
            results.keep("sets", f"mean | {name}", {"rmse": of_mean(name, arguments.data)})
    for depth in arguments.depths:
        for method in arguments.methods:
            for name in ORDER:
                key = f"{method} | {depth} | {name}"
                if key not in results["sets"] and name in arguments.only and not arguments.show:
                    results.keep("sets", key, run(name, method, depth, arguments, console))
    show(results, arguments, console)
    results.say_where()


if __name__ == "__main__":
    main()

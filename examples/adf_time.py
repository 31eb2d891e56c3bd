"""The cost of density filtering: a pass beside an epoch of plain torch training of the same network.

Processor time of one thread for each datum, the median of several rounds in which all take turns:

    filter      one datum after another, by the compiled filter, PBP and EBP, float64 and float32
    in torch    the same without a compiler, as on a GPU, for one network and for a batch of 20 replicates
    plain, 1    torch, stochastic gradients, one datum a step, as the filter takes them
    plain, 32   the same with minibatches of 32

    python examples/adf_time.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest import mock

import torch
from _common import Results, wide_console
from rich.table import Table

from momentgen.inference.adf import DensityFilter
from momentgen.inference.likelihood import Categorical, Gamma, Gaussian, Likelihood

#: name -> widths, likelihood, data a round
NETWORKS: dict[str, tuple[tuple[int, ...], Likelihood, int]] = {
    "regression, 8-50-50-1": ((8, 50, 50, 1), Gaussian(precision=Gamma(6.0, 6.0)), 1000),
    "regression, 9-100-100-1": ((9, 100, 100, 1), Gaussian(precision=Gamma(6.0, 6.0)), 500),
    "classes, 784-400-400-10": ((784, 400, 400, 10), Categorical(), 100),
}


def plain(sizes: tuple[int, ...], x: torch.Tensor, y: torch.Tensor, batch: int) -> Callable[[], None]:
    """One epoch of stochastic gradient descent."""
    layers: list[torch.nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    loss = torch.nn.functional.cross_entropy if sizes[-1] > 1 else torch.nn.functional.mse_loss

    def epoch() -> None:
        for features, targets in zip(x.split(batch), y.split(batch), strict=True):
            optimizer.zero_grad()
            loss(net(features), targets).backward()
            optimizer.step()

    return epoch


def filtering(
    sizes: tuple[int, ...],
    likelihood: Likelihood,
    x: torch.Tensor,
    y: torch.Tensor,
    compiled: bool = True,
    **options: object,
) -> Callable[[], None]:
    """One pass of the filter, replicates and precision those of the data."""
    net = DensityFilter(sizes, likelihood, replicates=len(y), dtype=x.dtype, **options)

    def run() -> None:
        with mock.patch.object(DensityFilter, "_native", DensityFilter._native if compiled else lambda self: None):
            net.update(x, y)

    return run


def microseconds(name: str, rounds: int) -> dict[str, float]:
    """Median processor time a datum, or a datum and replicate, by method."""
    sizes, likelihood, n = NETWORKS[name]
    x = torch.randn(1, n, sizes[0])
    y = torch.randint(0, 10, (1, n)) if sizes[-1] > 1 else torch.randn(1, n)
    few = max(10, n // 20)
    batch = x[:, :few].expand(20, -1, -1), y[:, :few].expand(20, -1)
    targets = y[0] if sizes[-1] > 1 else y[0, :, None]
    runs: dict[str, tuple[Callable[[], None], int]] = {
        "filter, pbp, float64": (filtering(sizes, likelihood, x.double(), y), n),
        "filter, pbp, float32": (filtering(sizes, likelihood, x, y), n),
        "filter, ebp, float64": (filtering(sizes, likelihood, x.double(), y, rule="ebp"), n),
        "in torch, pbp, float32": (filtering(sizes, likelihood, x[:, :few], y[:, :few], compiled=False), few),
        "in torch, pbp, float32, 20 replicates": (filtering(sizes, likelihood, *batch, compiled=False), 20 * few),
        "plain, 1": (plain(sizes, x[0], targets, 1), n),
        "plain, 32": (plain(sizes, x[0], targets, 32), n),
    }
    times: dict[str, list[float]] = {key: [] for key in runs}
    for _ in range(rounds + 1):
        for key, (run, count) in runs.items():
            started = time.process_time()
            run()
            times[key].append(1e6 * (time.process_time() - started) / count)
    return {key: statistics.median(values[1:]) for key, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's results")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "adf_time.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    console = wide_console()
    results = Results(arguments.out, {"rounds": arguments.rounds}, ("microseconds",), arguments.fresh, console)
    for name in NETWORKS:
        if name not in results["microseconds"]:
            results.keep("microseconds", name, microseconds(name, arguments.rounds))
    table = Table(
        title="Processor time, one thread: µs a datum (times plain torch, one datum a step)", title_justify="left"
    )
    rows = results["microseconds"]
    for column in ("", *rows):
        table.add_column(column, justify="right" if column else "left")
    for method in next(iter(rows.values())):
        cells = (f"{row[method]:.1f} ({row[method] / row['plain, 1']:.2f})" for row in rows.values())
        table.add_row(method, *cells)
    console.print(table)
    results.say_where()


if __name__ == "__main__":
    main()

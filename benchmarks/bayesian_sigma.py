"""The predictive σ of a trained Bayesian network, by method, beside drawn weights.

    python benchmarks/bayesian_sigma.py                  # the digits of scikit-learn, two posteriors, 4,000 draws
    python benchmarks/bayesian_sigma.py --quick          # a few examples and draws

A network of 64, 100, 100 and 10 units is trained on two thirds of the digits by the evidence lower bound (prior
N(0, 1), method ``local``), once with independent weights and once with a tridiagonal posterior whose ρ is set to -0.45
when it begins.  For examples of the last third the standard deviation of each logit, over the posterior, is found by
``ap2``, ``adjoint``, ``correlated`` and ``covariance``.  Figures of a row, over examples and outputs:

    ratio        geometric mean of σ / σ of the draws
    spread       standard deviation of the ratio's logarithm, less the draws' own
    mean_error   root mean square of (mean - mean of draws) / σ of draws; 1/√draws of it is the draws' own
    seconds      for all examples together; `draws` is the time of the draws
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import torch
from _common import console, environment, save
from rich.box import SIMPLE_HEAD
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import momentgen
from momentgen.inference.bayesian_network import BayesianNetwork, randomise
from momentgen.inference.likelihood import Categorical
from momentgen.inference.posterior import MeanField, Posterior
from momentgen.inference.training import Trainer
from momentgen.inference.tridiagonal import Tridiagonal

FIGURES = ("ratio", "spread", "mean_error", "seconds")
METHODS = ("ap2", "adjoint", "correlated", "covariance")


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, of pixels from 0 to 1, and labels: two thirds to train on, and the last third."""
    x, y = load_digits(return_X_y=True)
    images, labels = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    cut = 2 * len(images) // 3
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def trained(posterior: Posterior, x: Tensor, y: Tensor, epochs: int) -> BayesianNetwork:
    """The network, trained."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    network = randomise(plain, posterior)
    Trainer(network, Categorical(), propagation="local", lr=3e-3, batch_size=64).run(x, y, epochs)
    return network.eval()


def drawn(network: BayesianNetwork, x: Tensor, draws: int) -> tuple[Tensor, Tensor, float]:
    """Mean and standard deviation of the logits over drawn weights, and the seconds."""
    torch.manual_seed(1)
    started = time.perf_counter()
    with momentgen.method("sample"):
        total = torch.stack([network(x).mean for _ in range(draws)]).double()
    return total.mean(0), total.std(0), time.perf_counter() - started


def figures(network: BayesianNetwork, x: Tensor, draws: int) -> dict[str, dict[str, float]]:
    """One row for each method."""
    mean, std, seconds = drawn(network, x, draws)
    rows = {"draws": {"seconds": seconds}}
    for name in METHODS:
        started = time.perf_counter()
        with momentgen.method(name):  # type: ignore[arg-type]
            found = network(x)
        seconds = time.perf_counter() - started
        logs = (found.std.double() / std).log()
        rows[name] = {
            "ratio": logs.mean().exp().item(),
            "spread": math.sqrt(max(logs.var().item() - 1 / (2 * draws), 0.0)),
            "mean_error": ((found.mean.double() - mean) / std).square().mean().sqrt().item(),
            "seconds": seconds,
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--quick", action="store_true", help="3 epochs, 10 examples, 200 draws; nothing is written")
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.examples, args.draws = 3, 10, 200
    x, y, x_test, y_test = data()
    rows: dict[str, Any] = {}
    table = Table("posterior", "method", "σ/σ of draws", "spread", "mean error", "seconds", box=SIMPLE_HEAD)
    families = {"mean field": MeanField(std=0.05), "tridiagonal": Tridiagonal(tau=0.3, rho=-0.45)}
    with torch.no_grad():
        for family, posterior in families.items():
            with torch.enable_grad():
                network = trained(posterior, x, y, args.epochs)
            with momentgen.method("ap1"):
                error = (network(x_test).mean.argmax(1) != y_test).double().mean().item()
            found = figures(network, x_test[: args.examples], args.draws)
            rows[family] = {"test_error": error, **_correlations(network), "methods": found}
            for name, row in found.items():
                cells = [
                    f"{row[key]:.3f}" if key in row else "" for key in ("ratio", "spread", "mean_error", "seconds")
                ]
                table.add_row(family, name, *cells)
    console.print(table)
    if args.quick:
        return
    settings = {"epochs": args.epochs, "examples": args.examples, "draws": args.draws}
    save("bayesian_sigma", {"environment": environment(), "settings": settings, "rows": rows})


def _correlations(network: BayesianNetwork) -> dict[str, Any]:
    """Learnt ρ of each parameter, where there are."""
    found = {name: one.rho.item() for name, one in network.posteriors.items() if isinstance(one, Tridiagonal)}
    return {"rho": found} if found else {}


if __name__ == "__main__":
    main()

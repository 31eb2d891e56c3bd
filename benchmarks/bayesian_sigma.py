"""The predictive σ of trained Bayesian networks, by method, beside drawn weights.

    python benchmarks/bayesian_sigma.py --data DIR       # DIR holds mnist.npz; 10,000 draws
    python benchmarks/bayesian_sigma.py --quick          # a few examples and draws; nothing is written

Two networks are trained by variance back-propagation (the evidence lower bound with moments by ``ap2``, prior N(0, 1)):
one of 64, 100, 100 and 10 units on two thirds of scikit-learn's digits, and LeNet on 10,000 images of MNIST.  Each is
trained with independent weights, and with a tridiagonal posterior whose ρ is set to -0.45 when it begins.  For test
examples the standard deviation of each logit, over the posterior, is found by each method.  ``controlled`` is asked for
16 rows, and for its default accuracy.  Figures of a row, over examples and outputs:

    ratio        geometric mean of σ / σ of the draws
    rms          root mean square of the ratio's logarithm, less the draws' own
    mean_error   root mean square of (mean - mean of draws) / σ of draws; 1/√draws of it is the draws' own
    forwards     processor time, over that of one draw: the weights' and a plain forward pass
    gain         draws that know σ as well, over draws that take as long
    stated, coverage, rows     of controlled: root mean square of the stated error / σ, the share of σ within twice the
                 stated error, and the rows used
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from _common import console, environment, save
from _trained import images, lenet
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
from momentgen.runtime import Moments

FIGURES = ("ratio", "rms", "mean_error", "forwards", "gain", "stated", "coverage", "rows")
#: name -> method and what is asked of it
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ap2": ("ap2", {}),
    "controlled, 16 rows": ("controlled", {"max_rows": 16}),
    "controlled": ("controlled", {}),
}
FAMILIES: dict[str, Posterior] = {"mean field": MeanField(std=0.05), "tridiagonal": Tridiagonal(tau=0.3, rho=-0.45)}

#: images to train on, their labels, and those of the test
Data = tuple[Tensor, Tensor, Tensor, Tensor]


def digits() -> Data:
    """Images of 64 pixels from 0 to 1: two thirds to train on, and the last third."""
    x, y = load_digits(return_X_y=True)
    pixels, labels = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    cut = 2 * len(pixels) // 3
    return pixels[:cut], labels[:cut], pixels[cut:], labels[cut:]


def mnist(folder: Path | None) -> Data:
    """Images of MNIST, or made-up ones without a folder."""
    found = images(folder)
    return found.x_train[:10_000], found.y_train[:10_000], found.x_test, found.y_test


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))


def trained(plain: nn.Module, posterior: Posterior, x: Tensor, y: Tensor, epochs: int) -> BayesianNetwork:
    """The network, trained."""
    network = randomise(plain, posterior)
    Trainer(network, Categorical(), propagation="ap2", lr=3e-3, batch_size=64).run(x, y, epochs)
    return network.eval()


def drawn(network: BayesianNetwork, x: Tensor, draws: int) -> tuple[Tensor, Tensor, float]:
    """Mean and standard deviation of the logits over drawn weights, and the seconds of one draw."""
    torch.manual_seed(1)
    started = time.process_time()
    with momentgen.method("sample"):
        total = torch.stack([network(x).mean for _ in range(draws)]).double()
    return total.mean(0), total.std(0), (time.process_time() - started) / draws


def timed(network: BayesianNetwork, x: Tensor, name: str, asked: dict[str, Any]) -> tuple[Moments, float]:
    """What a method finds, and the least of three times, in seconds."""
    seconds = math.inf
    with momentgen.method(name, **asked):  # type: ignore[arg-type]
        for _ in range(3):
            started = time.process_time()
            found = network(x)
            seconds = min(seconds, time.process_time() - started)
    return found, seconds


def figures(network: BayesianNetwork, x: Tensor, draws: int) -> dict[str, Any]:
    """One row for each method."""
    mean, std, one = drawn(network, x, draws)
    rows: dict[str, Any] = {"seconds of a draw": one, "methods": {}}
    for name, (method, asked) in METHODS.items():
        found, seconds = timed(network, x, method, asked)
        ratio, chance = found.std.double() / std, 1 / (2 * draws)
        square = max(ratio.log().square().mean().item() - chance, 1e-12)
        row = {
            "ratio": ratio.log().mean().exp().item(),
            "rms": math.sqrt(square),
            "mean_error": ((found.mean.double() - mean) / std).square().mean().sqrt().item(),
            "forwards": seconds / one,
            "gain": 1 / (2 * square) / (seconds / one),
        }
        if found.std_error is not None:
            stated = found.std_error.double() / std
            within = (ratio - 1).abs() < 2 * (stated.square() + chance).sqrt()
            row |= {
                "stated": stated.square().mean().sqrt().item(),
                "coverage": within.double().mean().item(),
                "rows": float(found.rows or 0),
            }
        rows["methods"][name] = row
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--epochs", type=int, default=60, help="of the digits; LeNet has a tenth")
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="3 epochs, 10 examples, 100 draws; nothing is written")
    args = parser.parse_args()
    if args.quick:
        args.epochs, args.examples, args.draws = 3, 10, 100
    elif args.data is None:
        parser.error("--data: the folder with mnist.npz is needed, but for --quick")
    torch.set_num_threads(1)
    networks: dict[str, tuple[Any, Data, int]] = {
        "MLP, digits": (perceptron, digits(), args.epochs),
        "LeNet, MNIST": (lenet, mnist(args.data), max(args.epochs // 10, 1)),
    }
    rows: dict[str, Any] = {}
    table = Table("network", "posterior", "method", *FIGURES, box=SIMPLE_HEAD)
    for title, (make, (x, y, x_test, y_test), epochs) in networks.items():
        for family, posterior in FAMILIES.items():
            torch.manual_seed(0)
            network = trained(make(), posterior, x, y, epochs)
            with torch.no_grad():
                with momentgen.method("ap1"):
                    error = (network(x_test).mean.argmax(1) != y_test).double().mean().item()
                found = figures(network, x_test[: args.examples], args.draws)
            rows.setdefault(title, {})[family] = {"test_error": error, **_correlations(network), **found}
            for name, row in found["methods"].items():
                cells = [f"{row[key]:.3g}" if key in row else "" for key in FIGURES]
                table.add_row(title, family, name, *cells)
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

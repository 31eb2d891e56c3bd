"""Expected outputs of random ReLU networks: the methods beside Monte Carlo at equal floating-point operations.

Networks of ``depth`` linear layers without biases, each followed by ReLU, of one width, their weights by He's
initialisation, N(0, 2/width), under a standard normal input.  Truth is the average of many draws; its own squared
error (the outputs' variance over the number of draws) is stated and subtracted.  Monte Carlo at equal operations is not
drawn: its expected squared error is that variance over the number of forward passes that cost as much as the method.

``exact`` has the covariances of ReLU by an op of two inputs, in the place of Hermite terms, as the method has them by
default.

    python benchmarks/random_networks.py [--width 256] [--depths 4 8 16] [--networks 2] [--draws 10000000]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable

import torch
from _common import console, environment, results_table, save
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.generated import relu_covariance
from momentgen.laws.covariance import options

__all__ = ["main"]

TERMS = (1, 2, 4)
CHUNK = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--networks", type=int, default=2)
    parser.add_argument("--draws", type=int, default=10_000_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    titles = ("depth", "method", "operations / draw", "mean squared error", "Monte Carlo's")
    table = results_table(*titles, words=2)
    rows = []
    for depth in arguments.depths:
        errors: dict[str, list[float]] = {}
        own, variances = [], []
        for seed in range(arguments.networks):
            network = random_network(arguments.width, depth, seed)
            mean, var = sampled(network, arguments.width, arguments.draws)
            own.append(float(var.mean()) / arguments.draws)
            variances.append(float(var.mean()))
            for name, run in methods(network, arguments.width).items():
                with torch.no_grad():
                    error = float((run().double() - mean).square().mean())
                errors.setdefault(name, []).append(error - own[-1])
        for name, found in errors.items():
            passes = cost(name, arguments.width)
            row = {
                "depth": depth,
                "method": name,
                "passes": passes,
                "mean_squared_error": statistics.mean(found),
                "of_each_network": found,
                "monte_carlo_at_equal_operations": statistics.mean(variances) / passes,
                "truth_mean_squared_error": statistics.mean(own),
            }
            rows.append(row)
            table.add_row(
                str(depth), name, f"{passes:.3g}", f"{row['mean_squared_error']:.2g}",
                f"{row['monte_carlo_at_equal_operations']:.2g}",
            )  # fmt: skip
    console.print(table)
    settings = {name: getattr(arguments, name) for name in ("width", "networks", "draws")}
    save("random_networks", {"environment": environment(), **settings, "results": rows})


def random_network(width: int, depth: int, seed: int) -> nn.Sequential:
    """Linear layers and ReLU in turn, by He's initialisation."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(width, width, generator=generator) * math.sqrt(2 / width))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers)


def sampled(network: nn.Module, width: int, draws: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of each output over that many draws."""
    generator = torch.Generator().manual_seed(1_000_003)
    total = torch.zeros(2, width, dtype=torch.float64)
    done = 0
    with torch.no_grad():
        while done < draws:
            out = network(torch.randn(min(CHUNK, draws - done), width, generator=generator)).double()
            total += torch.stack([out.sum(0), out.square().sum(0)])
            done += len(out)
    mean, square = total / draws
    return mean, square - mean.square()


def methods(network: nn.Sequential, width: int) -> dict[str, Callable[[], Tensor]]:
    """Name -> the means of the outputs."""
    x = Moments(torch.zeros(1, width), torch.ones(1, width))

    def with_terms(terms: int | None) -> Tensor:
        with options(terms=terms), momentgen.method("covariance"):
            return momentgen.convert(network)(x).mean[0]

    found: dict[str, Callable[[], Tensor]] = {"diagonal": lambda: momentgen.convert(network, "ap2")(x).mean[0]}
    for terms in TERMS:
        found[f"covariance, {terms} term{'s' * (terms > 1)}"] = lambda terms=terms: with_terms(terms)
    return {**found, "covariance, exact": lambda: with_terms(None)}


def cost(name: str, width: int) -> float:
    """Floating-point operations of a method, in forward passes of one draw: 2 width² a layer.

    Two products with the variances and means; or, for covariances, two products of matrices, and on their elements two
    operations for symmetry and three for each term, or, exactly, half those of the kernel, as pairs are computed once.
    """
    if name == "diagonal":
        return 2.0
    products = 4 * width**3 + 2 * width**2
    kernel = sum(relu_covariance.certificate().operations["forward"].values())
    each = 2 + (kernel / 2 if name.endswith("exact") else 3 * int(name.split()[1]))
    return (products + each * width**2) / (2 * width**2)


if __name__ == "__main__":
    main()

"""A neuron that is a logical AND, with uncertain inputs: table 1 of the paper, and what every rule makes of it.

Y is 1 with probability S(a (X1 + X2) + b), X1 and X2 are independent bits.  With a = 2 log 19 and b = -3 log 19 the
unit answers (1, 1) with probability 0.95 and (0, 1) with 0.05.  Now let the bits be uncertain: what is P(Y = 1)?

    E[X1 & X2]   what an ideal gate would say
    E[Y]         the unit itself, averaged over the four pairs of bits
    AP1          the ordinary network: S at the mean of the pre-activation
    the others   the pre-activation as a normal variable of the same mean and variance, through `logistic_bernoulli`

The text prints 0.077 at (0.25, 0.25); with the a and b that its other rows were computed with, E[Y] is 0.0782.
(Shekhovtsov & Flach 2018, Feed-forward Propagation in Probabilistic Neural Networks, example 1, table 1, B.3.)

Run it with ``python examples/and_gate.py``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from momentgen.generated import logistic_bernoulli

A, B = 2 * math.log(19), -3 * math.log(19)
#: p(X1 = 1), p(X2 = 1), and as printed: E[X1 & X2], E[Y], AP1
PRINTED = (
    (0.0, 0.0, 0.0, 0.00015, 0.00015),
    (0.0, 1.0, 0.0, 0.05, 0.05),
    (1.0, 1.0, 1.0, 0.95, 0.95),
    (0.25, 0.25, 0.0625, 0.077, 0.0027),
    (0.5, 0.5, 0.25, 0.26, 0.05),
    (0.75, 0.75, 0.56, 0.55, 0.5),
)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where the numbers go")


def unit(p1: float, p2: float) -> float:
    """E[Y], by the four pairs of bits."""
    total = 0.0
    for x1, x2 in itertools.product((0, 1), repeat=2):
        weight = (p1 if x1 else 1 - p1) * (p2 if x2 else 1 - p2)
        total += weight / (1 + math.exp(-A * (x1 + x2) - B))
    return total


def rows() -> list[dict[str, float]]:
    """One row an input of the table: the probabilities, as printed and as computed."""
    table = []
    for p1, p2, both, printed, printed_ap1 in PRINTED:
        mean = torch.tensor([A * (p1 + p2) + B])
        var = torch.tensor([A**2 * (p1 * (1 - p1) + p2 * (1 - p2))])
        row = {"p1": p1, "p2": p2, "E[X1 & X2] printed": both, "E[X1 & X2]": p1 * p2}
        row |= {"E[Y] printed": printed, "E[Y]": unit(p1, p2), "AP1 printed": printed_ap1}
        row |= {v: logistic_bernoulli(mean, var, variant=v).mean.item() for v in ("ap1", "ap2a", "ap2b", "pea")}
        row["exact"] = logistic_bernoulli(mean, var).mean.item()
        table.append(row)
    return table


def main() -> None:
    out: Path = parser.parse_args().out
    computed = rows()
    table = Table(title="P(Y = 1); S(a (X1 + X2) + b), a = 2 log 19, b = -3 log 19")
    columns = ("E[X1 & X2]", "E[Y] printed", "E[Y]", "AP1 printed", "ap1", "ap2a", "ap2b", "pea", "exact")
    for column in ("p1, p2", *columns):
        table.add_column(column, justify="right")
    for row in computed:
        table.add_row(f"{row['p1']:g}, {row['p2']:g}", *(f"{row[c]:.3g}" for c in columns))
    Console(width=120).print(table)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "and_gate.json"
    result = {"a": A, "b": B, "rows": [{k: float(f"{v:.6g}") for k, v in row.items()} for row in computed]}
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"`exact` is exact for a normal pre-activation, which that of two bits is not; numbers in {path}")


if __name__ == "__main__":
    main()

"""Examples of the Guide to the Expression of Uncertainty in Measurement and its Supplement 1, beside what they publish.

    python benchmarks/gum.py              # measure, into benchmarks/results/gum.json
    python benchmarks/gum.py --table      # the table of docs/tutorials/measured-formula.md, from the results on disk

Published values are those of JCGM 100:2008, annex H, and JCGM 101:2008, clause 9: of the law of propagation, and of the
Monte Carlo method.  Units are those of the documents.  Errors are ours, as stated.  σ is asked for to 0.3 %.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from _common import RESULTS, console, environment, write
from torch import Tensor
from torch.distributions import StudentT, Uniform

import momentgen
from momentgen import Moments, noisy

RESULT = RESULTS / "gum.json"
#: asked of σ, and passes at most
RTOL, ROWS = 3e-3, 2**17
EDGE = math.sqrt(3)


class Example(NamedTuple):
    """An example of the documents.

    Attributes:
        name: with the clause.
        function: of the inputs.
        inputs: makes these.
        level: of the interval.
        linear: published by the law of propagation: mean, σ, and ends of an interval; None where we have not read them.
        monte_carlo: likewise by Monte Carlo, whose intervals are the shortest; None where there is none.
        digits: after the point.
    """

    name: str
    function: Callable[..., Tensor]
    inputs: Callable[[], list[Moments]]
    level: float
    linear: tuple[float | None, ...]
    monte_carlo: tuple[float | None, ...] | None
    digits: int


def normal(mean: float, std: float) -> Moments:
    return noisy(mean, std=std)


def rectangle(low: float, high: float) -> Moments:
    half = (high - low) / 2
    return noisy((low + high) / 2, Uniform(torch.tensor(-half).double(), torch.tensor(half).double()))


def student(mean: float, scale: float, freedom: float) -> Moments:
    return noisy(mean, StudentT(*(torch.tensor(part).double() for part in (freedom, 0.0, scale))))


def impedance() -> list[Moments]:
    std = torch.tensor([0.0032, 9.5e-6, 0.00075]).double()
    correlation = torch.tensor([[1, -0.36, 0.86], [-0.36, 1, -0.65], [0.86, -0.65, 1]]).double()
    return list(noisy((4.9990, 19.661e-3, 1.04446), cov=std[:, None] * correlation * std))


def calibration() -> list[Moments]:
    off = -0.930 * 0.0029 * 0.00067
    return list(noisy((-0.1712, 0.00218), cov=torch.tensor([[0.0029**2, off], [off, 0.00067**2]]).double()))


def end_gauge(ls: Tensor, d: Tensor, alpha: Tensor, theta: Tensor, cycle: Tensor, off: Tensor, dt: Tensor) -> Tensor:
    """GUM H.1 in nm above 50 mm; ``cycle`` is uniform, and its cosine has the law of a temperature that oscillates."""
    return ls + d - (50e6 + ls) * (off * (theta + 0.5 * torch.cos(math.pi * cycle)) + alpha * dt)


def gauge_block(ls: Tensor, d: Tensor, d1: Tensor, d2: Tensor, alpha: Tensor, theta: Tensor, *u: Tensor) -> Tensor:
    """S1 9.5: as above, with rectangles whose ends are uncertain."""
    cycle, off, off_end, dt, dt_end = u
    apart = (1e-6 + 0.1e-6 * off_end) * off * (theta + 0.5 * torch.cos(math.pi * cycle))
    return ls + d + d1 + d2 - 50e6 * (apart + alpha * (0.050 + 0.025 * dt_end) * dt)


def mass(m: Tensor, dm: Tensor, air: Tensor, weight: Tensor, reference: Tensor) -> Tensor:
    return (m + dm) * (1 + (air - 1.2) * (1 / weight - 1 / reference)) - 1e5


def mismatch(place: float) -> Callable[[], list[Moments]]:
    return lambda: [normal(1e3 * place, 5.0), normal(0.0, 5.0)]


def total(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return a + b + c + d


def squares(x: Tensor, y: Tensor) -> Tensor:
    """Of inputs in thousandths, in millionths."""
    return x * x + y * y


UNIT = (-1.0, 1.0)
EXAMPLES = [
    Example("H.1, end gauge, nm", end_gauge, lambda: [
        normal(623, 25), normal(215, 9.7), rectangle(9.5e-6, 13.5e-6), normal(-0.1, 0.2), rectangle(0, 1),
        rectangle(-1e-6, 1e-6), rectangle(-0.05, 0.05),
    ], 0.99, (838, 32, 745, 931), None, 0),
    Example("H.2, resistance, Ω", lambda V, I, phi: V / I * torch.cos(phi), impedance, 0.95,  # noqa: E741
            (127.732, 0.071, None, None), None, 3),
    Example("H.2, reactance, Ω", lambda V, I, phi: V / I * torch.sin(phi), impedance, 0.95,  # noqa: E741
            (219.847, 0.295, None, None), None, 3),
    Example("H.2, impedance, Ω", lambda V, I, phi: V / I + 0 * phi, impedance, 0.95,  # noqa: E741
            (254.260, 0.236, None, None), None, 3),
    Example("H.3, correction at 30 °C, °C", lambda a, b: a + b * (30 - 20), calibration, 0.95,
            (-0.1494, 0.0041, None, None), None, 4),
    Example("S1 9.2.2, four normal values", total, lambda: [normal(0, 1) for _ in range(4)], 0.95,
            (0, 2.00, -3.92, 3.92), (0, 2.00, -3.92, 3.92), 2),
    Example("S1 9.2.3, four rectangles", total, lambda: [rectangle(-EDGE, EDGE) for _ in range(4)], 0.95,
            (0, 2.00, -3.92, 3.92), (0, 2.00, -3.88, 3.88), 2),
    Example("S1 9.2.4, one of them wider", total,
            lambda: [rectangle(-width * EDGE, width * EDGE) for width in (1, 1, 1, 10)], 0.95,
            (0, 10.1, -19.9, 19.9), (0, 10.1, -17.0, 17.0), 1),
    Example("S1 9.3, mass, mg", mass, lambda: [
        normal(100000, 0.050), normal(1.234, 0.020), rectangle(1.1, 1.3), rectangle(7000, 9000), rectangle(7950, 8050),
    ], 0.95, (1.234, 0.0539, None, None), (1.234, 0.0754, None, None), 4),
    Example("S1 9.4, loss at x₁ = 0, 10⁻⁶", squares, mismatch(0.0), 0.95, (0, 0, 0, 0), (50, 50, 0, 150), 0),
    Example("S1 9.4, loss at x₁ = 0.010, 10⁻⁶", squares, mismatch(0.010), 0.95, (100, 100, -96, 296),
            (150, 112, 0, 367), 0),
    Example("S1 9.4, loss at x₁ = 0.050, 10⁻⁶", squares, mismatch(0.050), 0.95, (2500, 500, 1520, 3480),
            (2550, 502, 1590, 3543), 0),
    Example("S1 9.5, gauge block, nm", gauge_block, lambda: [
        student(623, 25, 18), student(215, 6, 24), student(0, 4, 5), student(0, 7, 8), rectangle(9.5e-6, 13.5e-6),
        normal(-0.1, 0.2), rectangle(0, 1), *(rectangle(*UNIT) for _ in range(4)),
    ], 0.99, (838, 32, 745, 931), (838, 36, 745, 932), 0),
]  # fmt: skip


def measured(example: Example) -> dict[str, Any]:
    """Our values of an example, and their stated errors."""
    started = time.perf_counter()
    out = momentgen.propagate(example.function, *example.inputs(), rtol=RTOL, max_rows=ROWS)
    ends = out.interval(example.level, shortest=True)
    names = ("lower", "upper", "lower_error", "upper_error")
    found = {"mean": out.mean, "mean_error": out.mean_error, "std": out.std, "std_error": out.std_error}
    found |= dict(zip(names, ends, strict=True))
    return {name: float(part) for name, part in found.items()} | {
        "passes": out.rows,
        "seconds": time.perf_counter() - started,
    }


def table() -> str:
    """A row for each example."""
    rows = json.loads(RESULT.read_text())["rows"]
    lines = [
        "| example | law of propagation | Monte Carlo | ours | stated errors: mean, σ, ends | passes |",
        "|" + " --- |" * 6,
    ]
    for example in EXAMPLES:
        row = rows[example.name]
        digits = example.digits
        ours = [row[part] for part in ("mean", "std", "lower", "upper")]
        errors = [row[part] for part in ("mean_error", "std_error", "lower_error", "upper_error")]
        said = f"{errors[0]:.1g}, {errors[1]:.1g}, {max(errors[2:]):.1g}"
        cells = [shown(part, digits) for part in (example.linear, example.monte_carlo, ours)]
        lines.append(f"| {example.name} | {' | '.join(cells)} | {said} | {row['passes']} |")
    return "\n".join(lines) + "\n"


def shown(values: Any, digits: int) -> str:
    """Mean ± σ, and the interval, with as many digits as are published."""
    if values is None:
        return ""
    texts = ["" if value is None else f"{round(value, digits) + 0.0:.{digits}f}" for value in values]
    return f"{texts[0]} ± {texts[1]}" + (f", [{texts[2]}, {texts[3]}]" if texts[2] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="print the documented table, and measure nothing")
    if parser.parse_args().table:
        print(table(), end="")
        return
    torch.set_num_threads(1)
    rows = {}
    for example in EXAMPLES:
        row = measured(example)
        rows[example.name] = {name: float(f"{value:.6g}") for name, value in row.items()} | {"passes": row["passes"]}
        console.print(example.name, rows[example.name], highlight=False)
    write(RESULT, {"environment": environment(), "rows": rows})


if __name__ == "__main__":
    main()

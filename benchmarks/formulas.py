"""What follows from an uncertain formula, against a million draws: moments, interval, probabilities, shares.

    python benchmarks/formulas.py [--only lens] [--seeds 6]
    python benchmarks/formulas.py --table     # the tables of docs/results/formulas.md, from the results on disk

Formulas are those of ``_formulas.py``.  Figures of a formula and a quantity, over seeds:

    error       root mean square of the error: of a mean, σ, or end of an interval in units of σ, else as it is
    stated      median of the stated error, in the same units
    z           root mean square of the error over the stated error and that of the truth
    held        share within two stated errors

``formulas_first.json`` is the first run on the list; no run writes it again.  Passes are those of the answer.  Shares
of inputs take further ones.  Results are on disk after each formula.  Other packages stand beside, where they are
installed (``pip install uncertainties soerp mcerp SALib``):

    linear      error of σ, in σ, by ``uncertainties``
    soerp       the same by its moments of second order, from our derivatives
    mcerp       the same by its 10,000 draws, and the largest error of the ends of the interval, in σ
    salib       largest error of the first-order shares by SALib's Sobol sequence, 1,024 (inputs + 2) passes
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import warnings
from typing import Any

import numpy as np
import torch
from _common import RESULTS, console, environment, write
from _formulas import FORMULAS, Formula
from torch import Tensor

import momentgen
from momentgen import Moments, noisy

try:
    import mcerp
    import SALib.analyze.sobol
    import SALib.sample.sobol
    import soerp
    import uncertainties
except ImportError:  # they are no dependencies
    uncertainties = None

DRAWS = 10**6
RESULT = RESULTS / "formulas.json"
#: deviations from the mean, in σ, of the three events
EVENTS = {"above": 1.0, "far above": 2.0, "below": -1.0}


def truth(formula: Formula) -> dict[str, tuple[Tensor, Tensor]]:
    """Quantities by a million draws, and the errors of those."""
    generator = torch.Generator().manual_seed(1)
    one, other = ({name: given.draws(DRAWS, generator) for name, given in formula.inputs.items()} for _ in range(2))
    y = formula.function(**one)
    mean, std = y.mean(), y.std()
    kurtosis = ((y - mean) / std).pow(4).mean()
    found = {"mean": (mean, std / DRAWS**0.5), "std": (std, std * ((kurtosis - 1) / 4 / DRAWS) ** 0.5)}
    ordered = y.sort().values
    for name, level in (("lower", 0.025), ("upper", 0.975)):
        place, off = int(level * DRAWS), int((level * (1 - level) * DRAWS) ** 0.5)
        found[name] = ordered[place], (ordered[place + off] - ordered[place - off]) / 2
    for name, at in EVENTS.items():
        share = (y > mean + at * std).double().mean() if at > 0 else (y < mean + at * std).double().mean()
        found[name] = share, (share * (1 - share) / DRAWS) ** 0.5
    for name in formula.inputs:
        product = (y - mean) * (formula.function(**{**other, name: one[name]}) - mean) / std**2
        found[f"share of {name}"] = product.mean(), product.std() / DRAWS**0.5
    return found


def inputs(formula: Formula) -> list[Moments]:
    """The inputs as noisy values, float64."""
    made = []
    for given in formula.inputs.values():
        mean = torch.tensor(given.mean, dtype=torch.float64)
        if given.law is None:
            made.append(noisy(mean, std=given.std))
        else:
            made.append(noisy(mean, type(given.law)(given.law.low - mean, given.law.high - mean)))
    return made


def answers(formula: Formula, seed: int, known: dict[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
    """Our quantities and their stated errors; and the passes."""
    out = momentgen.propagate(formula.function, *inputs(formula), seed=seed)
    found = {"mean": (out.mean, out.mean_error), "std": (out.std, out.std_error)}
    interval = out.interval(0.95)
    found |= {"lower": (interval.lower, interval.lower_error), "upper": (interval.upper, interval.upper_error)}
    mean, std = known["mean"][0], known["std"][0]
    for name, at in EVENTS.items():
        found[name] = out.probability(functools.partial(torch.gt if at > 0 else torch.lt, other=mean + at * std))
    found["passes"] = (torch.tensor(float(out.rows or 0)), torch.zeros(()))
    return found


def shares(formula: Formula, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """First-order shares of the inputs."""
    found = momentgen.budget(formula.function, *inputs(formula), seed=seed)
    return {
        f"share of {name}": (found.first[group], found.first_error[group]) for group, name in enumerate(formula.inputs)
    }


def linear(formula: Formula, std: float) -> float | None:
    """The error of σ by ``uncertainties``, which is linear, in σ."""
    if uncertainties is None:
        return None

    def plain(*values: float) -> float:
        given = [torch.tensor(value, dtype=torch.float64) for value in values]
        return float(formula.function(*given))

    values = [
        uncertainties.ufloat(given.mean, given.std if given.law is None else float(given.law.stddev))
        for given in formula.inputs.values()
    ]
    return float(f"{uncertainties.wrap(plain)(*values).std_dev / std - 1:.4g}")


def beside(formula: Formula, known: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """What ``soerp``, ``mcerp`` and SALib are off by."""
    if uncertainties is None:
        return {}
    mean, std = (float(known[name][0]) for name in ("mean", "std"))
    given = formula.inputs.values()
    spread = np.array([one.std if one.law is None else float(one.law.stddev) for one in given])
    moments = [
        [1, 0, 1, 0, 3, 0, 15, 0, 105] if one.law is None else [1, 0, 1, 0, 1.8, 0, 27 / 7, 0, 9] for one in given
    ]

    def whole(x: Tensor) -> Tensor:
        return formula.function(*x)

    at = torch.tensor([one.mean for one in given], dtype=torch.float64)
    slopes = torch.func.grad(whole)(at).numpy() * spread
    bends = torch.func.hessian(whole)(at).numpy() * spread[:, None] * spread
    off = bends - np.diag(bends.diagonal())
    of_moments = soerp.method_of_moments.soerp_numeric(
        slopes, bends.diagonal() / 2, off, np.array(moments), float(whole(at)), silent=True
    )
    np.random.seed(0)  # noqa: NPY002 - mcerp draws by it
    drawn = [
        mcerp.N(one.mean, one.std) if one.law is None else mcerp.U(float(one.law.low), float(one.law.high))
        for one in given
    ]
    y = formula.function(*(torch.from_numpy(one._mcpts) for one in drawn)).numpy()
    ends = np.quantile(y, (0.025, 0.975)) - [float(known[name][0]) for name in ("lower", "upper")]
    problem = {
        "num_vars": len(formula.inputs),
        "names": list(formula.inputs),
        "bounds": [
            [one.mean, one.std] if one.law is None else [float(one.law.low), float(one.law.high)] for one in given
        ],
        "dists": ["norm" if one.law is None else "unif" for one in given],
    }
    points = SALib.sample.sobol.sample(problem, 1024, calc_second_order=False, seed=0)
    values = formula.function(*torch.from_numpy(points).T).numpy()
    first = SALib.analyze.sobol.analyze(problem, values - mean, calc_second_order=False, seed=0)["S1"]
    exact = [float(known[f"share of {name}"][0]) for name in formula.inputs]
    return {
        "soerp": float(of_moments[1] ** 0.5 / std - 1),
        "mcerp": [float(y.std() / std - 1), float(np.abs(ends).max() / std)],
        "salib": float(np.abs(first - exact).max()),
    }


def judged(formula: Formula, seeds: int) -> dict[str, Any]:
    """The row of a formula."""
    known = truth(formula)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for seed in range(seeds):
        for name, value in answers(formula, seed, known).items():
            found.setdefault(name, []).append(value)
        if seed < max(seeds // 3, 1):
            for name, value in shares(formula, seed).items():
                found.setdefault(name, []).append(value)
    std = known["std"][0]
    passes = float(torch.stack([value for value, _ in found.pop("passes")]).mean())
    row: dict[str, Any] = {"source": formula.source, "passes": passes, "linear": linear(formula, float(std))}
    row |= beside(formula, known)
    for name, pairs in found.items():
        value, error = (torch.stack([pair[part].detach().double().reshape(()) for pair in pairs]) for part in (0, 1))
        exact, own = known[name]
        size = float(std) if name in ("mean", "std", "lower", "upper") else 1.0
        rounding = 1e-12 * abs(float(exact))
        z = (value - exact) / (error.square() + own.square() + rounding**2).sqrt()
        row[name] = {
            "truth": float(exact),
            "error": float((value - exact).square().mean().sqrt()) / size,
            "stated": float(error.median()) / size,
            "z": float(z.square().mean().sqrt()),
            "held": float((z.abs() <= 2).double().mean()),
        }
    return row


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value


KINDS = {
    "mean": "mean",
    "std": "σ",
    "interval": "ends of 95 % intervals",
    "events": "probabilities",
    "shares": "shares",
}


def kind(name: str) -> str:
    """Which kind of quantity a name is."""
    if name.startswith("share"):
        return "shares"
    return "interval" if name in ("lower", "upper") else "events" if name in EVENTS else name


def summary(rows: dict[str, Any]) -> list[str]:
    """How often stated errors hold, by kind."""
    lines = ["| quantity | numbers | two stated errors hold | rms of z | median error, stated |", "|" + " --- |" * 5]
    for which, text in KINDS.items():
        cells = [
            cell
            for row in rows.values()
            for name, cell in row.items()
            if isinstance(cell, dict) and kind(name) == which
        ]
        held, z = (sum(cell[part] for cell in cells) / len(cells) for part in ("held", "z"))
        middle = [sorted(cell[part] for cell in cells)[len(cells) // 2] for part in ("error", "stated")]
        lines.append(f"| {text} | {len(cells)} | {held:.0%} | {z:.2f} | {middle[0]:.2g}, {middle[1]:.2g} |")
    return lines


def table() -> str:
    """How often stated errors hold in the first run and now; and a row for each formula."""
    first, rows = (
        json.loads((RESULTS / name).read_text())["rows"] for name in ("formulas_first.json", "formulas.json")
    )
    lines = ["The first run:", "", *summary(first), "", "The present code:", "", *summary(rows)]
    heads = ["formula", "passes", "error of σ, stated", "ends of the interval", "probabilities", "shares"]
    others = ["formula", "σ: uncertainties", "soerp", "mcerp", "momentgen", "ends: mcerp", "momentgen"]
    others += ["shares: SALib", "momentgen"]
    beside = ["", *(f"| {' | '.join(others)} |", "|" + " --- |" * len(others))]
    lines += ["", f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for name, row in rows.items():
        texts, worst = [f"{row['std']['error']:.1g}, {row['std']['stated']:.1g}"], {}
        for which in ("interval", "events", "shares"):
            cells = [cell for key, cell in row.items() if isinstance(cell, dict) and kind(key) == which]
            worst[which] = max(cell["error"] for cell in cells)
            texts.append(f"{worst[which]:.1g}, {max(cell['stated'] for cell in cells):.1g}")
        lines.append(f"| {name} ({row['source']}) | {row['passes']:.0f} | {' | '.join(texts)} |")
        if "mcerp" in row:
            shown = [f"{row['linear']:+.1%}", f"{row['soerp']:+.2%}", f"{row['mcerp'][0]:+.2%}"]
            shown += [f"{row['std']['error']:.2%}", f"{row['mcerp'][1]:.1g}", f"{worst['interval']:.1g}"]
            shown += [f"{row['salib']:.1g}", f"{worst['shares']:.1g}"]
            beside.append(f"| {name} | {' | '.join(shown)} |")
    lines += beside
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a formula's name")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--table", action="store_true", help="print the documented table, and measure nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(), end="")
        return
    warnings.simplefilter("ignore")
    found = {"environment": environment(), "rows": {}}
    if RESULT.exists():
        found["rows"] = json.loads(RESULT.read_text())["rows"]
    torch.set_num_threads(1)
    for formula in FORMULAS:
        if arguments.only not in formula.name:
            continue
        row = judged(formula, arguments.seeds)
        found["rows"][formula.name] = _rounded(row)
        write(RESULT, found)
        cells = {name: cell for name, cell in row.items() if isinstance(cell, dict)}
        worst = max(cells, key=lambda name: cells[name]["z"])
        held = sum(cell["held"] for cell in cells.values()) / len(cells)
        console.print(
            f"{formula.name}: {row['passes']:.0f} passes, held {held:.0%}, worst z {cells[worst]['z']:.1f} ({worst})"
        )


if __name__ == "__main__":
    main()

"""Tables and computed sentences of docs/momentgen-and.md: other packages and momentgen on the same numbers."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from result_pages import table

__all__ = ["SENTENCES", "TABLES"]

ROOT = Path(__file__).parents[2]
#: in a table of the estimators' likelihoods
MODELS = ("PBP", "EBP", "NGBoost", "Laplace", "Forest", "GP-ARD", "Logistic")
#: the intervals of the last two are conformal, by a quarter of the rows, as MAPIE's split method
INTERVALS = ("PBP", "EBP", "GP-ARD", "BayesianRidge", "Forest", "HGB")


def _read(name: str, folder: str = "benchmarks") -> Any:
    return json.loads((ROOT / folder / "results" / f"{name}.json").read_text(encoding="utf-8"))


def _errors() -> dict[str, list[float]]:
    """Package -> size of the relative error of σ, by formula."""
    rows, others = _read("formulas")["rows"], _read("others")["formulas"]
    return {
        "uncertainties": [abs(row["linear"]) for row in rows.values()],
        "soerp": [abs(row["soerp"]) for row in rows.values()],
        "filterpy": [abs(others[name]["error"]) for name in rows],
        "mcerp": [abs(row["mcerp"][0]) for row in rows.values()],
        "momentgen": [row["std"]["error"] for row in rows.values()],
    }


def formulas() -> str:
    """Error of σ on thirty formulas, by package."""
    passes = [row["passes"] for row in _read("formulas")["rows"].values()]
    calls = [row["calls"] for row in _read("others")["formulas"].values()]
    how = {
        "uncertainties": ("slopes", "derivatives"),
        "soerp": ("slopes and curvatures", "derivatives"),
        "filterpy": ("unscented transform", f"{min(calls)} to {max(calls)}"),
        "mcerp": ("draws", "10,000"),
        "momentgen": ("a fitted part, and draws of the rest", f"{min(passes):.0f} to {max(passes):.0f}"),
    }
    rows = [
        [name, *how[name], f"{statistics.median(found):.2%}", f"{max(found):.1%}", str(sum(x < 0.01 for x in found))]
        for name, found in _errors().items()
    ]
    return "\n".join(table(["package", "takes", "calls", "error of σ, median", "largest", "of 30 within 1 %"], rows))


def guide() -> str:
    """Example H.2 of the Guide by GTC and momentgen."""
    gtc, ours = _read("others")["GTC"], _read("gum")["rows"]
    rows = []
    for name, (mean, std) in gtc.items():
        own = ours[f"H.2, {name}, Ω"]
        rows.append([name, f"{mean:.3f} ± {std:.4f}", f"{own['mean']:.3f} ± {own['std']:.4f}"])
    return "\n".join(table(["Ω", "GTC", "momentgen"], rows))


def network() -> str:
    """σ of a small network, by method."""
    names = {"linear": "slopes", "unscented": "unscented transform (filterpy)", "129 draws": "plain draws"}
    rows = [
        [names.get(name, name), str(row["passes"]), f"{row['rms']:.3f}", f"{row['cost']:.0f}"]
        for name, row in sorted(_read("others")["network"].items(), key=lambda item: -item[1]["rms"])
    ]
    return "\n".join(table(["method", "passes", "rms of log σ", "time over a plain pass"], rows))


def likelihoods() -> str:
    """Negative log-likelihoods of held-out rows, averaged over splits."""
    found: dict[str, dict[str, list[float]]] = {}
    for key, row in _read("estimators").items():
        name, model, _ = key.split(" | ")
        if "nll" in row:
            found.setdefault(name, {}).setdefault(model, []).append(row["nll"])
    rows = []
    for name, models in found.items():
        means = {model: statistics.mean(models[model]) for model in MODELS if model in models}
        best = min(means.values())
        cells = {model: f"**{mean:.3f}**" if mean == best else f"{mean:.3f}" for model, mean in means.items()}
        rows.append([name, *(cells.get(model, "").replace("-", "−") for model in MODELS)])
    heads = ("PBP", "EBP", "NGBoost", "laplace-torch", "forest", "GP", "logistic regression")
    return "\n".join(table(["set", *heads], rows))


def intervals() -> str:
    """Intervals of 95 % on the tables and the first splits that all have run on."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for key, row in _read("tables").items():
        name, model, _ = key.split(" | ")
        if "cover" in row:
            found.setdefault(name, {}).setdefault(model, []).append(row)
    sets = [models for models in found.values() if set(INTERVALS) <= set(models)]
    counts = [min(len(models[model]) for model in INTERVALS) for models in sets]
    names = {"Forest": "forest, conformal", "HGB": "boosted trees, conformal", "GP-ARD": "GP"}
    rows = []
    for model in INTERVALS:
        mean = {
            what: statistics.mean(
                statistics.mean(row[what] for row in models[model][:count])
                for models, count in zip(sets, counts, strict=True)
            )
            for what in ("crps", "cover", "width", "seconds")
        }
        shown = [f"{mean['crps']:.3f}", f"{mean['cover']:.1%}", f"{mean['width']:.2f}", f"{mean['seconds']:.2g}"]
        rows.append([names.get(model, model), *shown])
    return "\n".join(table(["model", "CRPS", "holds", "width", "seconds of a fit"], rows))


def sentences() -> list[str]:
    """What the page says with computed figures."""
    errors, others = _errors(), _read("others")
    rows = _read("formulas")["rows"].values()
    ends = [max(row[end]["error"] for end in ("lower", "upper")) for row in rows]
    nearer = sum(a < b for a, b in zip(errors["mcerp"], errors["momentgen"], strict=True))
    net, wide = others["network"], others["bounds"]
    draws = (net["129 draws"]["rms"] / net["momentgen"]["rms"]) ** 2 * net["129 draws"]["cost"]
    posteriors = _read("trained_posteriors", "examples")["posteriors"]
    laplace = [found["controlled"] for name, found in posteriors.items() if "Laplace" in name]
    faster, off = ([found[what] for found in laplace] for what in ("draws' time over its", "off, median"))
    return [
        f"mcerp is nearer on {nearer} of the 30",
        f"in the median {statistics.median(row['mcerp'][1] for row in rows):.3f} σ by mcerp, "
        f"and {statistics.median(ends):.3f} σ by momentgen",
        f"To the error of momentgen, plain draws would take {float(f'{draws:.2g}'):,.0f} plain passes",
        f"{wide['IBP']:.0f} times as wide by IBP, and {wide['CROWN']:.0f} times by CROWN",
        f"4,000 draws of the network take {min(faster):.0f} to {max(faster):.0f} times as long",
        f"σ is within {100 * min(off):.1f} to {100 * max(off):.1f} % of theirs in the median",
    ]


TABLES: dict[str, Callable[[], str]] = {
    "formulas by package": formulas,
    "the Guide's H.2 by package": guide,
    "a small network by package": network,
    "likelihoods by package": likelihoods,
    "intervals by package": intervals,
}
SENTENCES: dict[str, Callable[[], list[str]]] = {"../momentgen-and": sentences}

"""Relative errors of the rules whose promise is a tolerance: where a tail is less accurate than its size.

The float32 ops are compared with rigorous balls of f itself (:class:`BallTruth`, 256 bits) on a grid of means and
variances: a map for a few rules, docs/relative_error.png, and for all of them the means at which an output is off by
1 %, 10 % or all of itself, benchmarks/results/relative_error.json, which benchmarks/accuracy.py puts into
docs/relative-errors.md.  Takes some minutes.

    python benchmarks/relative_error.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import torch
from _common import console, save

import momentgen.generated
from momentgen.compiler.derive import derive
from momentgen.compiler.exact.piecewise_truth import BallTruth
from momentgen.compiler.strategies.tolerance import Parametric, closed_form_truth
from momentgen.rule import Rule, load_rules

ROOT = Path(__file__).parents[1]
F32, F64 = npt.NDArray[np.float32], npt.NDArray[np.float64]

MEANS = np.arange(-12, 12.25, 0.5, dtype=np.float32)
#: of the table
VARIANCES = np.float32([1e-4, 1e-2, 1])
#: of the map
MAPPED = ("tanh", "sigmoid", "silu", "gelu", "softplus", "elu")
MAPPED_VARIANCES = np.float32(10.0 ** np.arange(-4, 2.01, 0.25))
LEVELS = (0.01, 0.1, 1.0)
_SMALLEST = 2.0**-126  # below it float32 itself has fewer digits: not shown


def main() -> None:
    rules = {rule.name: rule for rule in load_rules(ROOT / "rules")}
    names = [name for name, rule in rules.items() if measured_by_tolerance(rule)]
    rows: list[dict[str, Any]] = []
    maps: dict[str, Mapping[str, F64]] = {}
    for name in names:
        rows += table_of(rules[name])
        if name in MAPPED:
            maps[name] = relative_errors(rules[name], MAPPED_VARIANCES)
        console.print(name)
    draw(maps, ROOT / "docs" / "relative_error.png")
    grid = {"means": [float(MEANS[0]), float(MEANS[-1]), float(MEANS[1] - MEANS[0])], "levels": list(LEVELS)}
    save("relative_error", {"grid": grid, "rules": names, "results": rows})
    console.print(f"{len(names)} rules: docs/relative_error.png")


def measured_by_tolerance(rule: Rule) -> bool:
    """Whether the exact variant is promised to a tolerance; those of exp and square are relative."""
    path = ROOT / "generated" / rule.name / "exact.json"
    if not path.is_file() or rule.bernoulli or rule.name in ("exp", "square"):
        return False
    return "tolerance" in json.loads(path.read_text(encoding="utf-8"))["goal"]


def exact(rule: Rule, mean: F32, var: F32) -> Mapping[str, F64]:
    """Mean and variance at the default parameters."""
    if rule.name in ("sin", "cos"):
        return closed_form_truth(derive(rule))(mean, var, rule.defaults)
    return BallTruth(Parametric.of(rule).at(rule.defaults))(mean, var, {})


def relative_errors(rule: Rule, variances: F32) -> dict[str, F64]:
    """|computed/exact - 1| by variance and mean; NaN where the exact value is below the normal numbers."""
    var, mean = (grid.ravel() for grid in np.meshgrid(variances, MEANS, indexing="ij"))
    op = getattr(momentgen.generated, rule.name)
    computed = op(torch.from_numpy(mean.copy()), torch.from_numpy(var.copy()))._asdict()
    found = {}
    for name, values in exact(rule, mean, var).items():
        if name in computed:
            normal = np.abs(values) >= _SMALLEST
            error = np.abs(computed[name].numpy().astype(np.float64) / np.where(normal, values, 1) - 1)
            found[name] = np.where(normal, error, np.nan).reshape(len(variances), -1)
    return found


def table_of(rule: Rule) -> list[dict[str, Any]]:
    rows = []
    for name, errors in relative_errors(rule, VARIANCES).items():
        for var, row in zip(VARIANCES, errors, strict=True):
            where = {f"{level:g}": intervals(row >= level) for level in LEVELS}
            worst = float(np.nanmax(row))
            rows.append({"rule": rule.name, "output": name, "var": float(f"{var:g}"), "worst": worst, "where": where})
    return rows


def intervals(mask: npt.NDArray[np.bool_]) -> list[list[float]]:
    """The means of a mask as runs from one to another."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [[float(MEANS[a]), float(MEANS[b - 1])] for a, b in edges.reshape(-1, 2)]


def draw(maps: Mapping[str, Mapping[str, F64]], path: Path) -> None:
    size, shared = (2.4 * len(maps) + 1.5, 5.2), {"sharex": True, "sharey": True}
    figure, axes = plt.subplots(2, len(maps), figsize=size, squeeze=False, layout="constrained", **shared)
    for column, (name, errors) in zip(axes.T, maps.items(), strict=True):
        for panel, output in zip(column, ("mean", "var"), strict=True):
            shown = np.log10(np.clip(errors[output], 1e-8, 1e2))
            image = panel.pcolormesh(MEANS, MAPPED_VARIANCES, shown, cmap="magma", vmin=-8, vmax=2, shading="nearest")
            marks = np.log10(LEVELS) - 1e-9
            panel.contour(MEANS, MAPPED_VARIANCES, np.nan_to_num(shown, nan=-8), marks, colors="w", linewidths=0.8)
            panel.set(yscale="log", title=f"{name}: {output}")
            panel.title.set_size(9)
            panel.tick_params(labelsize=7)
    figure.supxlabel("mean of the input", fontsize=9)
    figure.supylabel("variance of the input", fontsize=9)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("log10 of the relative error; lines at 1 %, 10 %, 100 %", fontsize=8)
    # Without the version of the library and the time, the same numbers give the same bytes.
    figure.savefig(path, dpi=90, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main()

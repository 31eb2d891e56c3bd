"""The picture on the first page: σ of trained networks by two methods over Monte Carlo's, and what it costs.

    python benchmarks/first_page.py

It draws docs/first_page.svg from benchmarks/results/answers.json and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from _common import RESULTS
from matplotlib.axes import Axes

#: name in the results -> label; noise of variance 0.01 on inputs of variance about 0.1
NETWORKS = {
    "mlp | noise 0.01": "MLP",
    "lenet | noise 0.01": "LeNet",
    "mnist_example | noise 0.01": "PyTorch's example",
    "resnet | noise 0.01": "small ResNet",
    "nine_layers | noise 0.01": "nine layers",
    "vit | noise 0.01": "small ViT",
}
#: name in the results -> label, colour
METHODS = {
    "controlled": ("momentgen's default", "#0b6e99"),
    "ap2": ("ap2, for training", "#d9730d"),
}
SAMPLES = "plain sampling to the same accuracy"


def spread(cell: dict[str, Any]) -> tuple[float, float, float]:
    """The ratio of a typical output, and the part of it that lies below and above for two thirds of the outputs."""
    ratio: float = cell["ratio"]
    single = math.sqrt(max(cell["rms"] ** 2 - math.log(ratio) ** 2, 0))
    return ratio, ratio * (1 - math.exp(-single)), ratio * (math.exp(single) - 1)


def bar(axes: Axes, height: float, cost: float, colour: str, label: str | None = None) -> None:
    """A cost, with its number."""
    axes.barh(height, cost, 0.24, color=colour, label=label)
    axes.annotate(f"{cost:,.0f}", (cost, height), (3, 0), textcoords="offset points", va="center", fontsize=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "first_page.svg")
    out = parser.parse_args().out
    cells = json.loads((RESULTS / "answers.json").read_text())["cells"]
    plt.rcParams.update({
        "font.size": 11, "svg.hashsalt": "momentgen", "axes.spines.top": False, "axes.spines.right": False,
    })  # fmt: skip
    figure, (ratios, costs) = plt.subplots(1, 2, figsize=(10, 4.8), sharey=True, layout="constrained")
    for place, network in enumerate(NETWORKS):
        for shift, (method, (label, colour)) in enumerate(METHODS.items()):
            height = -place - 0.25 * (shift - 1)
            ratio, below, above = spread(cells[network][method])
            style = {"color": colour, "label": label if place == 0 else None}
            ratios.barh(height, ratio, 0.24, xerr=[[below], [above]], error_kw={"ecolor": "#444444"}, **style)
            ratios.text(ratio + above + 0.02, height, f"{ratio:.2f}", va="center", fontsize=9)
            bar(costs, height, cells[network][method]["cost"], colour)
        default = cells[network]["controlled"]
        bar(costs, -place - 0.25, default["gain"] * default["cost"], "#9a9a9a", SAMPLES if place == 0 else None)
    ratios.axvline(1, color="#222222", linewidth=0.8, zorder=0)
    ratios.set(xlim=(0, 1.3), title="σ found / true σ; lines: two thirds of the outputs")
    ratios.set_yticks([-place for place in range(len(NETWORKS))], list(NETWORKS.values()))
    costs.margins(x=0.12)
    costs.set(xlabel="plain forward passes", title="time")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(out, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()

"""How uncertain is a network about a noisy input?  σ and its error bar, layer by layer, beside Monte Carlo.

A small convolutional network is trained on scikit-learn's digits in plain torch.  Then every pixel gets noise
N(0, s²), and three methods say how large the standard deviation of every unit is:

    Monte Carlo   thousands of noisy images through the network: the truth, σ*
    controlled    16 rows and more of the plain network, with a linear map as control variate; states its error
    ap2           one pass of means and variances; takes the units of a layer as independent

The table has, for each layer, the root mean square of σ over that of σ* (1 is perfect), the typical error of a single
σ, the error that was stated, and the share of units whose σ* lies within two stated errors.

Run it with ``python examples/digits_noise.py``; it takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import momentgen
from momentgen import Moments

# ------------------------------------------------------------------ arguments

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--noise", type=float, default=0.1, help="standard deviation of the noise; pixels are in 0..1")
parser.add_argument("--inputs", type=int, default=16, help="test images to propagate")
parser.add_argument("--samples", type=int, default=10_000, help="Monte Carlo samples per image")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--out", type=Path, default=Path("demo-out"), help="where the picture and the numbers go")
arguments = parser.parse_args()

torch.manual_seed(0)
console = Console()

# ---------------------------------------------------------- data, and a network

pixels, labels = load_digits(return_X_y=True)
split = train_test_split(pixels / 16, labels, test_size=0.3, random_state=0, stratify=labels)
x_train, x_test = (torch.tensor(part, dtype=torch.float32).view(-1, 1, 8, 8) for part in split[:2])
y_train, y_test = (torch.tensor(part) for part in split[2:])


def trained() -> nn.Sequential:
    """A network of two convolutions and two linear layers, trained with Adam."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    adam = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-4)
    for _ in track(range(arguments.epochs), "training", console=console, transient=True):
        for batch in torch.randperm(len(x_train)).split(64):
            adam.zero_grad()
            nn.functional.cross_entropy(net(x_train[batch]), y_train[batch]).backward()
            adam.step()
    return net.eval()


# --------------------------------------------------------------- three answers


def converted(part: nn.Sequential, method: str) -> nn.Module:
    """A network over moments; hidden layers have hundreds of units, and are asked for 10 % in place of 5."""
    if method == "controlled":
        return momentgen.convert(part, method, rtol=0.05 if len(part) == len(net) else 0.1)
    return momentgen.convert(part, method)


def by_layer(method: str) -> list[Moments]:
    """Moments after the layers shown: each of the networks that end there is converted and run."""
    with torch.no_grad():
        return [converted(net[: place + 1], method)(x) for place in places]


def seconds(run: Callable[[], object]) -> float:
    """Processor time of the shortest of five calls, after one that is not counted."""
    found = []
    for _ in range(6):
        start = time.process_time()
        with torch.no_grad():
            run()
        found.append(time.process_time() - start)
    return min(found[1:])


net = trained()
accuracy = (net(x_test).argmax(1) == y_test).double().mean().item()
x = momentgen.noisy(x_test[: arguments.inputs], std=arguments.noise)
sampled = momentgen.monte_carlo(net, x, arguments.samples, seed=1)
places = [place for place, layer in enumerate(net) if not isinstance(layer, nn.Flatten | nn.ReLU)]
truth = [sampled.layers[str(place)] for place in places]
answers = {method: by_layer(method) for method in ("controlled", "ap2")}

# The cost is that of all test images at once: with few of them, what Python does per call counts.
torch.set_num_threads(1)
many = momentgen.noisy(x_test, std=arguments.noise)
plain = seconds(lambda: net(many.mean))
cost = {method: seconds(lambda: converted(net, method)(many)) / plain for method in answers}  # noqa: B023

# ------------------------------------------------------------------ the table


def compared(found: Moments, true: Moments) -> dict[str, float | None]:
    """How near σ is to Monte Carlo's, as parts of the layer's σ*."""
    std, error = found.std.double(), found.std_error
    size = true.var.mean().sqrt()

    def part(values: Tensor) -> float:
        return (values.square().mean().sqrt() / size).item()

    row: dict[str, float | None] = {"ratio": part(std), "error": part(std - true.std), "stated": None, "within": None}
    if error is not None:
        chance = true.std / (2 * arguments.samples) ** 0.5  # Monte Carlo's own error
        near = (std - true.std).abs() <= 2 * (error.double().square() + chance.square()).sqrt()
        # A unit that hardly ever moves may not have moved in any row.
        row["stated"], row["within"] = part(error.double()), near[true.std > 0.1 * size].double().mean().item()
    return row


rows = {method: [compared(*pair) for pair in zip(found, truth, strict=True)] for method, found in answers.items()}
table = Table(
    title=f"test accuracy {accuracy:.1%}; noise of σ {arguments.noise} on every pixel; σ over that of "
    f"{arguments.samples:,} samples"
)
for heading in ("layer", "controlled", "error", "stated", "within two stated errors", "ap2", "error"):
    table.add_column(heading, justify="left" if heading == "layer" else "right")
names = [f"{place} {type(net[place]).__name__}" for place in places]
for name, ours, diagonal in zip(names, rows["controlled"], rows["ap2"], strict=True):
    cells = [f"{ours[key]:.3f}" for key in ("ratio", "error", "stated")]
    table.add_row(name, *cells, f"{ours['within']:.0%}", f"{diagonal['ratio']:.3f}", f"{diagonal['error']:.3f}")
console.print(table)
output = answers["controlled"][-1]
console.print(
    f"controlled: {output.rows} rows of the network, at the cost of {cost['controlled']:.0f} plain forward passes. "
    f"ap2: {cost['ap2']:.0f}.\n"
    "ap2 takes the units of a layer as independent, but the noise of the pixels has made them correlated.",
    soft_wrap=True,
    highlight=False,
)

# -------------------------------------------------------- what follows from σ

with torch.no_grad():
    image = momentgen.noisy(x_test[:1], std=arguments.noise)
    first = momentgen.convert(net)(image)
    low, high = (end[0] for end in first.interval(0.95)[:2])
    right = first.probability(lambda logits: logits.argmax(-1) == y_test[0])
    rows_of_pixels = torch.arange(8).repeat_interleave(8).view(1, 8, 8)
    budget = momentgen.budget(net, image, groups=rows_of_pixels, names=[f"row {row} of pixels" for row in range(8)])
best = int(first.mean.argmax())
console.print(f"\nThe first image is a {y_test[0]}. With probability {right.value.item():.3f} it is taken for one.")
ends = f"between {low[best]:.2f} and {high[best]:.2f}"
console.print(f"Its largest logit is {ends} with 95 % probability. What makes it uncertain:", highlight=False)
console.print(budget.table((0, best)), highlight=False, markup=False)

# --------------------------------------------------------------------- picture

SHOWN = 100  # units per panel
INK, MUTED = "#222222", "#767676"
COLOURS = {"controlled": "#0b6e99", "ap2": "#d9730d"}
plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})


def scatter(axes: plt.Axes, place: int) -> None:
    """σ of single units over σ*, with the stated error as a bar."""
    some = torch.randperm(truth[place].std.numel(), generator=torch.Generator().manual_seed(0))[:SHOWN]
    std = truth[place].std.flatten()[some]
    for method in ("ap2", "controlled"):
        found = answers[method][place]
        error = None if found.std_error is None else 2 * found.std_error.flatten()[some]
        axes.errorbar(
            std,
            found.std.flatten()[some],
            error,
            fmt="o",
            markersize=2,
            linewidth=0.7,
            color=COLOURS[method],
            label=method,
            rasterized=True,
        )
    axes.axline((0, 0), slope=1, color=INK, linewidth=0.8)
    axes.set(xlabel="σ by Monte Carlo", title=names[place], xlim=(0, None), ylim=(0, None))


def outputs(axes: plt.Axes, image: int) -> None:
    """The ten logits of an image: mean ± σ by three methods."""
    for shift, (label, found, colour) in enumerate(
        (
            ("Monte Carlo", sampled.output, INK),
            ("controlled", output, COLOURS["controlled"]),
            ("ap2", answers["ap2"][-1], COLOURS["ap2"]),
        )
    ):
        bars = torch.arange(10) + 0.22 * (shift - 1)
        error = None if found.std_error is None else 2 * found.std_error[image]
        axes.bar(bars, found.std[image], 0.2, yerr=error, color=colour, label=label, error_kw={"linewidth": 1})
    axes.set(xlabel="logit", ylabel="σ", xticks=range(10), title=f"a {y_test[image]}: σ of its ten logits")
    axes.legend(frameon=False)


def ratios(axes: plt.Axes) -> None:
    """σ / σ* over the layers."""
    for method, found in rows.items():
        label = f"{method}, {cost[method]:.0f} forward passes"
        axes.errorbar(
            range(len(names)),
            [row["ratio"] for row in found],
            [row["error"] for row in found] if method == "controlled" else None,
            fmt="o-",
            markersize=4,
            capsize=2,
            color=COLOURS[method],
            label=label,
        )
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set(ylabel="σ / σ by Monte Carlo", ylim=(0, 1.3), title="σ of each layer; bars: typical error of a unit")
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
    axes.legend(frameon=False, loc="lower left")


figure = plt.figure(figsize=(13, 7), layout="constrained")
top, bottom = figure.subfigures(2, 1)
ratio_axes, output_axes = top.subplots(1, 2)
ratios(ratio_axes)
outputs(output_axes, 0)
panels = bottom.subplots(1, len(places))
for index, axes in enumerate(panels):
    scatter(axes, index)
panels[0].set_ylabel("σ, bars: two stated errors")
panels[0].legend(frameon=False, markerscale=2)

arguments.out.mkdir(parents=True, exist_ok=True)
picture, numbers = arguments.out / "digits_noise.png", arguments.out / "digits_noise.json"
figure.savefig(picture, dpi=110)
settings = {key: value for key, value in vars(arguments).items() if key != "out"}
result = {"settings": settings, "accuracy": accuracy, "rows": output.rows, "cost": cost, "layers": names, **rows}
numbers.write_text(json.dumps(result, indent=2) + "\n")
console.print(f"picture and numbers: {picture}, {numbers}", soft_wrap=True)

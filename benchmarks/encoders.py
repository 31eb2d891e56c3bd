"""One-layer transformer encoders against sampling, into benchmarks/results/encoders.json.

Unmodified Hugging Face ViT (8 x 8 digits in patches of 2 x 2; the same digits at 28 x 28 in patches of 7 x 7) and BERT
(token vectors as ``inputs_embeds``; the class is the symbol of the one marked token), with random weights and briefly
trained, under independent noise on every input.  Measured at three places: attention, the concatenated heads before
their output projection; hidden, ``last_hidden_state``; and the logits.  The error here is that of the rules and of all
correlations that a diagonal propagation leaves out, together.

Each cell tells the ratio of σ to that of sampling the plain network, the geometric mean over the units; its spread, the
standard deviation of the logarithm; and the error of the mean in σ of sampling, the average over the units.  By chance
alone the last two are 0.011 and 0.013 with 4,000 samples.  Beside momentgen stands the delta method, the full Jacobian
of the plain network at the mean, which knows all correlations but no curvature.

    OMP_NUM_THREADS=1 python benchmarks/encoders.py [--samples 4000] [--inputs 8]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from _common import console, environment, results_table, save
from sklearn.datasets import load_digits
from torch import Tensor, nn

import momentgen
from momentgen import Moments

# The directory of the tests goes before this one, which has a module of the same name.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from networks.third_party import allow_torchvision

allow_torchvision()

import transformers as hf  # noqa: E402

VARIANCES = (1e-4, 0.01, 0.1)
HIDDEN, HEADS, LENGTH, SYMBOLS = 64, 4, 16, 8
#: transformers' 0.02 is for a width of 768; here a weight matrix has the same gain
INITIAL = 0.02 * (768 / HIDDEN) ** 0.5
SIZES = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * HIDDEN,
    "initializer_range": INITIAL,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SITES = ("attention", "hidden", "logits")
METHODS = ("momentgen", "delta")
#: samples, and outputs of a Jacobian, taken at a time; more of them only cost memory
CHUNK = 32


# ------------------------------------------------------------------- networks


class Data(NamedTuple):
    """Inputs and classes, for training and for the test."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


class Sites(nn.Module):
    """An encoder, called on its random input alone, which also returns what it has on the way."""

    def __init__(self, model: nn.Module, argument: str) -> None:
        super().__init__()
        self.model, self.argument = model, argument

    def forward(self, x: Any) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        handles = [
            out_projection(self.model).register_forward_pre_hook(lambda module, args: kept.update(attention=args[0])),
            self.model.base_model.register_forward_hook(
                lambda module, args, out: kept.update(hidden=out.last_hidden_state)
            ),
        ]
        try:
            kept["logits"] = self.model(**{self.argument: x}).logits
        finally:
            for handle in handles:
                handle.remove()
        return kept


def out_projection(model: Any) -> nn.Module:
    """The linear map after the attention's heads."""
    kinds = (hf.models.vit.modeling_vit.ViTLayer, hf.models.bert.modeling_bert.BertLayer)
    layer = next(module for module in model.modules() if isinstance(module, kinds))
    return layer.attention.o_proj if isinstance(model, hf.ViTForImageClassification) else layer.attention.output.dense


def vit(size: int, patch: int) -> Sites:
    config = hf.ViTConfig(**SIZES, image_size=size, patch_size=patch, num_channels=1, num_labels=10)
    return Sites(hf.ViTForImageClassification(config), "pixel_values")


def bert() -> Sites:
    config = hf.BertConfig(**SIZES, vocab_size=2, max_position_embeddings=LENGTH, num_labels=SYMBOLS)
    return Sites(hf.BertForSequenceClassification(config), "inputs_embeds")


def digits(size: int) -> Data:
    """The digits in [-1, 1], enlarged to that size."""
    found = load_digits()
    x = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    if size != x.shape[-1]:
        x = F.interpolate(x, (size, size), mode="bilinear")
    y, order = torch.tensor(found.target), torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return Data(x[:1400], y[:1400], x[1400:], y[1400:])


def marked_tokens(count: int = 4000) -> Data:
    """Sequences of symbols, one of them marked, behind a token for the class; vectors of variance 1."""
    chance = torch.Generator().manual_seed(0)
    vectors = torch.randn(2 * SYMBOLS + 1, HIDDEN, generator=chance)
    tokens = torch.randint(SYMBOLS, (count, LENGTH), generator=chance)
    place = torch.randint(1, LENGTH, (count,), generator=chance)
    rows = torch.arange(count)
    y = tokens[rows, place].clone()
    tokens[rows, place] += SYMBOLS
    tokens[:, 0] = 2 * SYMBOLS
    x, kept = vectors[tokens], count - 400
    return Data(x[:kept], y[:kept], x[kept:], y[kept:])


#: how each network and its data are made, and for how many steps it is trained
NETWORKS: dict[str, tuple[Callable[[], Sites], Callable[[], Data], int]] = {
    "ViT 8x8": (lambda: vit(8, 2), lambda: digits(8), 300),
    "ViT 28x28": (lambda: vit(28, 7), lambda: digits(28), 300),
    "BERT": (bert, marked_tokens, 300),
}


def train(net: Sites, data: Data, steps: int) -> None:
    optimiser = torch.optim.AdamW(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    net.train()
    for _ in range(steps):
        pick = torch.randint(len(data.x), (64,))
        optimiser.zero_grad()
        F.cross_entropy(net(data.x[pick])["logits"], data.y[pick]).backward()
        optimiser.step()
        schedule.step()
    net.eval()


@torch.no_grad()
def accuracy(net: Sites, data: Data) -> float:
    return round(float((net(data.x_test)["logits"].argmax(-1) == data.y_test).float().mean()), 4)


# ----------------------------------------------------------- sampling, methods


@torch.no_grad()
def sampled(run: Callable[[Tensor], dict[str, Tensor]], x: Moments, samples: int) -> dict[str, Moments]:
    """Mean and variance of what a plain network returns, in float64, about a first value."""
    centre: dict[str, Tensor] = {name: out.double() for name, out in run(x.mean).items()}
    total = {name: torch.zeros_like(out) for name, out in centre.items()}
    squares = {name: torch.zeros_like(out) for name, out in centre.items()}
    for first in range(0, samples, CHUNK):
        count = min(CHUNK, samples - first)
        many = x.mean + x.std * torch.randn(count, *x.mean.shape)
        for name, out in run(many.flatten(0, 1)).items():
            away = out.reshape(count, len(x.mean), *out.shape[1:]).double() - centre[name]
            total[name] += away.sum(0)
            squares[name] += away.square().sum(0)
    return {
        name: Moments(centre[name] + total[name] / samples, squares[name] / samples - (total[name] / samples) ** 2)
        for name in centre
    }


def jacobians(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Of each example of a batch, shape (batch, outputs, inputs).

    Each output's gradient is taken in a copy of the example of its own, a batch of copies at a time: the same as vmap
    over the backward pass, in less memory and time.
    """
    with torch.no_grad():
        outputs = run(x).flatten(1).shape[1]
    found = torch.empty(len(x), outputs, x[0].numel())
    for one, rows in zip(x, found, strict=True):
        for which in torch.arange(outputs).split(CHUNK):
            copies = one.expand(len(which), *one.shape).clone().requires_grad_()
            picked = run(copies).flatten(1).gather(1, which[:, None]).sum()
            rows[which] = torch.autograd.grad(picked, copies)[0].flatten(1)
    return found


def delta(jacobian: Tensor, var: Tensor) -> Tensor:
    return torch.einsum("boi,bi->bo", jacobian.double().square(), var.flatten(1).double())


# -------------------------------------------------------------------- figures


def figures(found: Moments, truth: Moments) -> dict[str, float]:
    """Ratio of σ, its spread, and the error of the mean; units without noise are left out."""
    var, expected = found.var.double().flatten(), truth.var.flatten()
    noisy = expected > 0
    logs = (var[noisy] / expected[noisy]).log() / 2
    error = (found.mean.double() - truth.mean).flatten()[noisy].abs() / expected[noisy].sqrt()
    values = {"ratio": logs.mean().exp(), "spread": logs.std(), "mean_error": error.mean()}
    return {name: round(float(value), 4) for name, value in values.items()}


def measure(name: str, weights: str, net: Sites, x: Tensor, samples: int) -> Iterator[dict[str, Any]]:
    """Rows of all places and noises of one network."""
    converted = momentgen.convert(net.eval(), "ap2")
    with torch.no_grad():
        means = net(x)
    # The gradient of each place with respect to the input does not depend on the noise.
    whole = jacobians(lambda one: torch.cat([net(one)[site].flatten(1) for site in SITES], 1), x)
    sizes = [means[site][0].numel() for site in SITES]
    for variance in VARIANCES:
        torch.manual_seed(1)
        given = Moments(x, torch.full_like(x, variance))
        truth = sampled(net, given, samples)
        with torch.no_grad():
            found = converted(given)
        for site, second in zip(SITES, delta(whole, given.var).split(sizes, 1), strict=True):
            answers = {"momentgen": found[site], "delta": Moments(means[site], second)}
            cells = {method: figures(answer, truth[site]) for method, answer in answers.items()}
            yield {"network": name, "weights": weights, "variance": variance, "place": site, "methods": cells}


# -------------------------------------------------------------------- results


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How far each method is from sampling: root mean square of the logarithm of σ's ratio, per place."""
    found: dict[str, Any] = {}
    for place in dict.fromkeys(row["place"] for row in rows):
        of_place = [row["methods"] for row in rows if row["place"] == place]
        found[place] = {}
        for method in METHODS:
            cells = [methods[method] for methods in of_place]
            square = sum(math.log(cell["ratio"]) ** 2 + cell["spread"] ** 2 for cell in cells) / len(cells)
            found[place][method] = {
                "rms_log_ratio": round(square**0.5, 4),
                "mean_error": round(sum(cell["mean_error"] for cell in cells) / len(cells), 4),
            }
    return found


def show(rows: list[dict[str, Any]], of_places: dict[str, Any]) -> None:
    table = results_table("network", "weights", "var", "place", *METHODS)
    table.title = "ratio of σ to sampling ± spread of its logarithm, error of the mean in σ"
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        cells = [row["methods"][method] for method in METHODS]
        shown = [f"{cell['ratio']:.3f} ±{cell['spread']:.2f} {cell['mean_error']:.3f}" for cell in cells]
        first = row["place"] == SITES[0]
        heading = (row["network"], row["weights"], f"{row['variance']:g}") if first else ("", "", "")
        table.add_row(*heading, row["place"], *shown, end_section=row["place"] == SITES[-1])
    brief = results_table("place", *METHODS)
    brief.title = "root mean square of log σ ratio, error of the mean in σ, over all rows"
    for place, methods in of_places.items():
        shown = [f"{cell['rms_log_ratio']:.3f} {cell['mean_error']:.3f}" for cell in methods.values()]
        brief.add_row(place, *shown)
    console.width = max(console.width, 180)
    for each in (table, brief):
        console.print(each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--inputs", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    accuracies = {}
    for name, (build, make_data, steps) in NETWORKS.items():
        torch.manual_seed(0)
        net, data = build(), make_data()
        for weights in ("random", "trained"):
            if weights == "trained":
                train(net, data, steps)
                accuracies[name] = accuracy(net, data)
                console.print(f"{name}: {accuracies[name]:.1%} of the test right", highlight=False)
            rows += measure(name, weights, net, data.x_test[: arguments.inputs], arguments.samples)
    of_places = summary(rows)
    show(rows, of_places)
    found = {
        "environment": {**environment(), "transformers": hf.__version__},
        "sizes": {**SIZES, "initializer_range": round(INITIAL, 4)},
        "samples": arguments.samples,
        "inputs": arguments.inputs,
        "accuracy": accuracies,
        "summary": of_places,
        "results": rows,
    }
    save("encoders", found)


if __name__ == "__main__":
    main()

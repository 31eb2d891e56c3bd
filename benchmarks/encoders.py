"""One-layer transformer encoders against sampling, into benchmarks/results/encoders.json.

Unmodified Hugging Face ViT (8 x 8 digits in patches of 2 x 2; the same digits at 28 x 28 in patches of 7 x 7) and BERT
(token vectors as ``inputs_embeds``; the class is the symbol of the one marked token), with random weights and briefly
trained, under independent noise on every input.  Measured at five places:

* attention, hidden, logits: within the network, at the concatenated heads before their output projection, at
  ``last_hidden_state`` and at the logits.  The error here is that of the rules and of all correlations that a diagonal
  propagation leaves out, together.
* module alone: the heads again, the attention module fed with *independent* normal hidden states of the mean and
  variance that were sampled there; what is left are the correlations of queries, keys and values with each other.
* rule alone: the same with independent normal queries, keys and values, which is what the rule assumes.

Each cell tells the ratio of σ to that of sampling the plain network, the geometric mean over the units; its spread, the
standard deviation of the logarithm; and the error of the mean in σ of sampling, the average over the units.  By chance
alone the last two are 0.011 and 0.013 with 4,000 samples.  Compared are momentgen (three passes of the attention's
log-odds), with one and with two passes; SUQ's rule, queries and keys certain, so that the
weights are those of the means, all else as in momentgen; and the delta method, the full Jacobian of the plain network
or module at the mean, which knows all correlations but no curvature.

Times are those of one encoder layer over the plain layer, rounds in which all take turns, without gradients.

    OMP_NUM_THREADS=1 python benchmarks/encoders.py [--samples 4000] [--inputs 8] [--rounds 25]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from _common import console, environment, interleaved_medians, results_table, save
from sklearn.datasets import load_digits
from torch import Tensor, nn

import momentgen
from momentgen import Moments
from momentgen.laws import attention
from momentgen.laws.diagonal import mean_of
from momentgen.laws.numerics import attention as numerics

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
#: inputs, hidden states and projections of the attention, sampled to feed it alone
INNER = ("states", "query", "key", "value")
METHODS = ("momentgen", "one pass", "two passes", "SUQ", "delta")
#: samples, and outputs of a Jacobian, taken at a time; more of them only cost memory
CHUNK = 32


# ------------------------------------------------------------------- networks


class Data(NamedTuple):
    """Inputs and classes, for training and for the test."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


class Parts(NamedTuple):
    """The attention's own modules, of whatever names."""

    module: nn.Module
    query: nn.Module
    key: nn.Module
    value: nn.Module
    out: nn.Module


class Sites(nn.Module):
    """An encoder, called on its random input alone, which also returns what it has on the way."""

    def __init__(self, model: nn.Module, argument: str) -> None:
        super().__init__()
        self.model, self.argument = model, argument

    def forward(self, x: Any) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        with keeping(parts_of(self.model), kept):
            handle = self.model.base_model.register_forward_hook(
                lambda module, args, out: kept.update(hidden=out.last_hidden_state)
            )
            try:
                kept["logits"] = self.model(**{self.argument: x}).logits
            finally:
                handle.remove()
        return kept


class Alone(nn.Module):
    """The attention module alone, up to the concatenated heads."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: Any) -> Any:
        parts, kept = parts_of(self.model), {}
        with keeping(parts, kept):
            out = parts.module(states)
        return kept.get("attention", out[0])  # BERT's module ends at the heads


class Rule(nn.Module):
    """The attention of given queries, keys and values, of shape (3, batch, heads, length, features)."""

    def forward(self, given: Any) -> Any:
        return F.scaled_dot_product_attention(given[0], given[1], given[2])


def parts_of(model: Any) -> Parts:
    if isinstance(model, hf.ViTForImageClassification):
        own = layer_of(model).attention
        return Parts(own, own.q_proj, own.k_proj, own.v_proj, own.o_proj)
    whole = layer_of(model).attention
    return Parts(whole.self, whole.self.query, whole.self.key, whole.self.value, whole.output.dense)


def layer_of(model: Any) -> Any:
    kinds = (hf.models.vit.modeling_vit.ViTLayer, hf.models.bert.modeling_bert.BertLayer)
    return next(module for module in model.modules() if isinstance(module, kinds))


@contextlib.contextmanager
def keeping(parts: Parts, kept: dict[str, Any]) -> Iterator[None]:
    """Keep what enters and leaves the attention's projections."""

    def from_query(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        kept.update(states=args[0], query=out)

    handles = [
        parts.query.register_forward_hook(from_query),
        parts.key.register_forward_hook(lambda module, args, out: kept.update(key=out)),
        parts.value.register_forward_hook(lambda module, args, out: kept.update(value=out)),
        parts.out.register_forward_pre_hook(lambda module, args: kept.update(attention=args[0])),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
def sampled(run: Callable[[Tensor], dict[str, Tensor]], x: Moments, samples: int, dim: int = 0) -> dict[str, Moments]:
    """Mean and variance of what a plain network returns, in float64, about a first value; ``dim`` is of the batch."""
    batch, sigma = x.mean.shape[dim], x.var.sqrt()
    centre: dict[str, Tensor] = {name: out.double() for name, out in run(x.mean).items()}
    total = {name: torch.zeros_like(out) for name, out in centre.items()}
    squares = {name: torch.zeros_like(out) for name, out in centre.items()}
    for first in range(0, samples, CHUNK):
        count = min(CHUNK, samples - first)
        many = x.mean.unsqueeze(dim) + sigma.unsqueeze(dim) * torch.randn(
            *x.mean.shape[:dim], count, *x.mean.shape[dim:]
        )
        for name, out in run(many.flatten(dim, dim + 1)).items():
            away = out.reshape(count, batch, *out.shape[1:]).double() - centre[name]
            total[name] += away.sum(0)
            squares[name] += away.square().sum(0)
    return {
        name: Moments(centre[name] + total[name] / samples, squares[name] / samples - (total[name] / samples) ** 2)
        for name in centre
    }


@contextlib.contextmanager
def variant(name: str) -> Iterator[None]:
    """Attention as one of the methods compared, by exchanging what momentgen calls for it."""
    options: dict[str, dict[str, Any]] = {
        "one pass": {"passes": 1},
        "two passes": {"passes": 2},
    }
    if name == "SUQ":
        with mock.patch.object(attention, "attended", functools.partial(suq, attention.attended)):
            yield
    elif name in options:
        with mock.patch.object(numerics, "attention", functools.partial(numerics.attention, **options[name])):
            yield
    else:
        yield


def suq(attended: Callable[..., Any], query: Any, key: Any, *rest: Any) -> Any:
    """Attention with certain queries and keys."""
    return attended(mean_of(query), mean_of(key), *rest)


@torch.no_grad()
def propagated(name: str, net: nn.Module, x: Moments) -> Any:
    with variant(name):
        return net(x)


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
    net.eval()
    converted, module = momentgen.convert(net, "ap2"), Alone(net.model)
    rule = Rule()
    converted_module, converted_rule = momentgen.convert(module, "ap2"), momentgen.convert(rule, "ap2")
    with torch.no_grad():
        means = net(x)
    # The gradient of each place with respect to the input does not depend on the noise.
    whole = jacobians(lambda one: torch.cat([net(one)[site].flatten(1) for site in SITES], 1), x)
    sizes = [means[site][0].numel() for site in SITES]

    for variance in VARIANCES:
        torch.manual_seed(1)
        given = Moments(x, torch.full_like(x, variance))
        truth = sampled(net, given, samples)
        own = {"network": name, "weights": weights, "variance": variance}
        found = {method: propagated(method, converted, given) for method in METHODS[:-1]}
        by_delta = delta(whole, given.var).split(sizes, 1)
        for site, second in zip(SITES, by_delta, strict=True):
            cells = {method: figures(found[method][site], truth[site]) for method in METHODS[:-1]}
            cells["delta"] = figures(Moments(means[site], second), truth[site])
            yield {**own, "place": site, "methods": cells}

        states = Moments(*(part.float() for part in truth["states"]))
        alone = sampled(lambda h: {"out": module(h)}, states, samples)["out"]
        cells = {method: figures(propagated(method, converted_module, states), alone) for method in METHODS[:-1]}
        with torch.no_grad():
            mean = module(states.mean)
        cells["delta"] = figures(Moments(mean, delta(jacobians(module, states.mean), states.var)), alone)
        yield {**own, "place": "module alone", "methods": cells}

        parts = [Moments(*(in_heads(part.float()) for part in truth[site])) for site in INNER[1:]]
        heads = Moments(torch.stack([part.mean for part in parts]), torch.stack([part.var for part in parts]))
        alone = sampled(lambda qkv: {"out": rule(qkv)}, heads, samples, dim=1)["out"]
        cells = {method: figures(propagated(method, converted_rule, heads), alone) for method in METHODS[:-1]}
        (q, k, _), (vq, vk, _) = heads.mean, heads.var
        cells["delta"] = figures(Moments(rule(heads.mean), attention_delta(heads)), alone)
        scale = q.shape[-1] ** -0.5
        logit_var = scale**2 * ((q * q + vq) @ vk.mT + vq @ (k * k).mT)
        weight = torch.softmax(scale * q @ k.mT, -1).amax(-1).mean()
        logit = {"logit_sigma": logit_var.mean().sqrt(), "largest_weight": weight}
        yield {
            **own,
            "place": "rule alone",
            **{key: round(float(value), 4) for key, value in logit.items()},
            "methods": cells,
        }


def in_heads(states: Tensor) -> Tensor:
    return states.unflatten(-1, (HEADS, -1)).transpose(-3, -2)


def attention_delta(given: Moments) -> Tensor:
    """The exact Jacobian at the means, of queries, keys and values."""
    (q, k, v), (vq, vk, vv) = given.mean, given.var
    scale = q.shape[-1] ** -0.5
    p = torch.softmax(scale * q @ k.mT, -1)
    gain = p[..., None] * (v[..., None, :, :] - (p @ v)[..., None, :])  # of the output by the logits
    by_query = scale * torch.einsum("...se,...lsv->...lev", k, gain)
    by_key = scale**2 * ((q * q) @ vk.mT)
    return (vq[..., None] * by_query**2).sum(-2) + (by_key[..., None] * gain**2).sum(-2) + p**2 @ vv


# ---------------------------------------------------------------------- times


def times(name: str, layer: nn.Module, x: Tensor, rounds: int) -> dict[str, Any]:
    converted, given = momentgen.convert(layer.eval(), "ap2"), momentgen.noisy(x, var=0.01)

    @torch.no_grad()
    def plain() -> object:
        return layer(x)

    contestants: dict[str, Callable[[], object]] = {"plain": plain}
    for method in METHODS[:-1]:
        contestants[method] = functools.partial(propagated, method, converted, given)
    seconds = interleaved_medians(contestants, rounds=rounds)
    over = {method: round(seconds[method] / seconds["plain"], 2) for method in METHODS[:-1]}
    return {
        "layer": name,
        "shape": list(x.shape),
        "plain_milliseconds": round(1e3 * seconds["plain"], 3),
        "over_plain": over,
        "third_pass": round(seconds["momentgen"] / seconds["two passes"] - 1, 4),
    }


def layers() -> Iterator[tuple[str, nn.Module, Tensor]]:
    """The layers measured above, on eight inputs, and one of a ViT-Small on one image."""
    for name, build in (("ViT", lambda: vit(28, 7)), ("BERT", bert)):
        yield f"{name}, {HIDDEN} wide", layer_of(build().model), torch.randn(8, LENGTH + (name == "ViT"), HIDDEN)
    config = hf.ViTConfig(hidden_size=384, num_hidden_layers=1, num_attention_heads=6, intermediate_size=1536)
    config._attn_implementation = "sdpa"
    yield "ViT-Small, 384 wide", hf.models.vit.modeling_vit.ViTLayer(config), torch.randn(1, 197, 384)


# -------------------------------------------------------------------- results


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How far each number of passes is from sampling: root mean square of the logarithm of σ's ratio, per place."""
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


def show(rows: list[dict[str, Any]], of_places: dict[str, Any], timings: list[dict[str, Any]]) -> None:
    table = results_table("network", "weights", "var", "place", *METHODS)
    table.title = "ratio of σ to sampling ± spread of its logarithm, error of the mean in σ"
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        cells = [row["methods"][method] for method in METHODS]
        shown = [f"{cell['ratio']:.3f} ±{cell['spread']:.2f} {cell['mean_error']:.3f}" for cell in cells]
        first = row["place"] == SITES[0]
        heading = (row["network"], row["weights"], f"{row['variance']:g}") if first else ("", "", "")
        table.add_row(*heading, row["place"], *shown, end_section=row["place"] == "rule alone")
    brief = results_table("place", *METHODS)
    brief.title = "root mean square of log σ ratio, error of the mean in σ, over all rows"
    for place, methods in of_places.items():
        shown = [f"{cell['rms_log_ratio']:.3f} {cell['mean_error']:.3f}" for cell in methods.values()]
        brief.add_row(place, *shown)
    clock = results_table("layer", "shape", "plain, ms", *METHODS[:-1], "third pass")
    clock.title = "time over the plain layer"
    for row in timings:
        over = [f"{value:.1f} x" for value in row["over_plain"].values()]
        shape = " x ".join(map(str, row["shape"]))
        clock.add_row(row["layer"], shape, f"{row['plain_milliseconds']:.2f}", *over, f"{row['third_pass']:+.1%}")
    console.width = max(console.width, 180)
    for each in (table, brief, clock):
        console.print(each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--inputs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=25)
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
    timings = [times(*each, arguments.rounds) for each in layers()]
    of_places = summary(rows)
    show(rows, of_places, timings)
    found = {
        "environment": {**environment(), "transformers": hf.__version__},
        "sizes": {**SIZES, "initializer_range": round(INITIAL, 4)},
        "samples": arguments.samples,
        "inputs": arguments.inputs,
        "rounds": arguments.rounds,
        "accuracy": accuracies,
        "summary": of_places,
        "times": timings,
        "results": rows,
    }
    save("encoders", found)


if __name__ == "__main__":
    main()

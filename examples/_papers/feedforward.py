"""Feed-forward propagation (Shekhovtsov & Flach): its tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from _papers import Item, Run, percent

LENET = Run("lenet", "lenet_mnist.py", "lenet_mnist.json", "1")
NINE = Run("nine-layer", "nine_layer.py", "nine_layer.json", "1")
NINE_FULL = Run(
    "nine-layer-full",
    "nine_layer.py --width 1 --samples 1000 --out RESULTS/nine_layer_full.json",
    "nine_layer_full.json",
    "1",
)
DROPOUT = Run("dropout", "dropout_training.py", "dropout_training.json", lambda found: str(found["settings"]["seeds"]))
STABILITY = Run("stability", "stability.py", "stability.json", "1")
LOGISTIC = Run("logistic", "logistic_approximations.py", "logistic_approximations.json", "1,000 trials", data=False)
AND_GATE = Run("and-gate", "and_gate.py", "and_gate.json", "exact", data=False)
THROUGH = Run("noise-through-lenet", "noise_through_lenet.py", "noise_through_lenet.png", "1")
DRAWN = Run("illustrations", "logistic_illustrations.py", "logistic_illustrations.png", data=False)
BELIEF = Run("belief", "belief_network.py", "belief_network.json", "20")
MISSING = Run("missing-pixels", "missing_pixels.py", "missing_pixels.json", "1")
COST = Run(
    "cost",
    "../benchmarks/networks.py --threads 1",
    "../../benchmarks/results/networks_1_thread.json",
    data=False,
)

SMALL = "LeNet of 3 convolutions, 2 epochs of 60,000 images; 5 images, 4,000 samples (paper: 1,000)"
DEEP = ("LReLU, noise 0.01", "LReLU, dropout 0.2", "Logistic Bernoulli", "Logistic transform, noise 0.01")
FOUR = ("dropout 0.3", "analytic 0.3", "analytic 0.3, normalised", "dropout 0.3, normalised")


def _triple(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _lenet(*cases: str) -> Callable[[Any], str]:
    """ε_σ of the output of normalised networks."""
    return lambda found: _triple([found["table2"][f"{case} | normalised"]["eps_sigma_fitted"][-1] for case in cases])


def _deep(found: Any) -> str:
    """ε_σ at the pool; a dash stands for a case that has not been run."""
    rows = [found["table3"].get(f"{case} | trained") for case in DEEP]
    return ", ".join(f"{row['eps_sigma_exact'][-1]:.2f}" if row else "–" for row in rows)


def _depth(found: Any) -> str:
    """How much of the paper's nine layers a file has."""
    width, train = found["settings"]["width"], found["settings"]["train"]
    return (
        f"width {width:g} of the paper's, one pass over {train:,} enlarged digits, exact ops "
        "(paper: CIFAR-10, trained, fitted)"
    )


def _of_pixel(found: Any) -> str:
    rows = found["table4"].values()
    return f"{min(min(r['mu']) for r in rows):.2f} to {max(max(r['mu']) for r in rows):.2f}"


def _dropout(found: Any) -> str:
    """Accuracy over the last fifth of the validations, mean over seeds."""

    def end(values: list[float]) -> float:
        return sum(values[-(len(values) // 5) :]) / (len(values) // 5)

    seeds = range(found["settings"]["seeds"])
    means = [sum(end(found["networks"][f"{name} | {s}"]["accuracy"]) for s in seeds) / len(seeds) for name in FOUR]
    return ", ".join(percent(mean, 1) for mean in means)


def _stable(kind: str, step: int) -> Callable[[Any], str]:
    names = ("sigmoid", "Bernoulli, AP2")
    return lambda found: ", ".join(percent(found["networks"][name][kind][step][0], 1) for name in names)


def _over_plain(found: Any) -> str:
    over = {row["propagation"]: row["over_plain"] for row in found["results"] if row["network"] == "lenet"}
    return f"{over['ap2']:.2f}, {over['ap2, normalised']:.2f}"


def _pea(found: Any) -> str:
    """Errors of σ′ by PEA at mean 0 and at most, and where float32 fails."""
    rows = found["variance"]
    parts = [f"σ {s}: {rows[s]['PEA at 0']:.0%}, {rows[s]['PEA']:.0%}" for s in ("0.01", "1.0")]
    return f"{'; '.join(parts)}; float32 fails in {rows['0.01']['float32 fails']:.0%} at σ 0.01".replace("%", " %")


def _pixels(found: Any) -> str:
    ways = ("mean filled", "AP2", "controlled")
    return ", ".join(f"{found['missing']['0.5'][way]['KL']:.4f}" for way in ways) + f" ({', '.join(ways)})"


ITEMS = (
    Item(
        "Figure 1: mean and σ through a LeNet",
        found="drawn",
        scale="one image, noise 0.1, one epoch of training; Monte Carlo of 2,000",
        run=THROUGH,
    ),
    Item("Figures 2, 3: Heaviside, ReLU, leaky ReLU", found="a page per op", scale="site's gallery of ops"),
    Item(
        "Table 1: AND gate, E[Y] at (¼, ¼)",
        "0.077",
        lambda found: f"{found['rows'][3]['E[Y]']:.4f}",
        "the paper's",
        AND_GATE,
    ),
    Item(
        "Table 2: ε_σ of the output: noise 1e-4, 0.01, 0.1",
        "0.63, 0.69, 0.79",
        _lenet("LReLU, noise 1e-4", "LReLU, noise 0.01", "LReLU, noise 0.1"),
        SMALL,
        LENET,
    ),
    Item(
        "Table 2: the same of dropout, Bernoulli, transform",
        "0.95, 0.93, 0.90",
        _lenet("LReLU, dropout 0.2", "Logistic Bernoulli", "Logistic transform, noise 0.1"),
        SMALL,
        LENET,
    ),
    Item(
        "Table 3: ε_σ at the pool: noise, dropout, Bernoulli, transform", "0.07, 0.69, 0.99, 0.01", _deep, _depth, NINE
    ),
    Item("Table 3: the same at full width", "0.07, 0.69, 0.99, 0.01", _deep, _depth, NINE_FULL),
    Item("Table 4: error of the data set's means", "0.04 to 0.52", _of_pixel, "2,000 images", LENET),
    Item(
        "Figure 4: accuracy, dropout 0.3: sampled; analytic; analytic, normalised; control: sampled, normalised",
        "a plot, no control",
        _dropout,
        "LeNet, 1,000 images of MNIST, 50 epochs (paper: CIFAR-10)",
        DROPOUT,
    ),
    Item(
        "Figure 5: accuracy at noise 0.8, sigmoid and Bernoulli",
        "a plot",
        _stable("gaussian", 8),
        "the paper's",
        STABILITY,
    ),
    Item(
        "Figure D.1: the same at a gradient-sign attack of 0.1", "a plot", _stable("sign", 4), "the paper's", STABILITY
    ),
    Item("Figures C.1, C.3, C.4: illustrations", found="drawn", scale="the paper's", run=DRAWN),
    Item(
        "Figure C.2: largest KL of AP2a, 2 inputs, bits",
        "a plot",
        lambda found: f"{found['largest']['2']['AP2a']:.4f}",
        "the paper's",
        LOGISTIC,
    ),
    Item(
        "C.4: variance of the logistic transform by PEA: error of σ′ at mean 0, and at most",
        "“inaccurate for small σ”, “unstable”",
        _pea,
        "its exact integral, since the paper prints no formula; means −10 to 10",
        replace(LOGISTIC, seeds="exact"),
    ),
    Item(
        "Section 4: cost of a training step over a plain one, AP2 and normalised; LeNet",
        "3, 6",
        _over_plain,
        "one thread of a CPU, batch 256",
        COST,
    ),
    Item(
        "Sigmoid belief networks (the title): r.m.s. error of AP1, AP2",
        "",
        lambda found: ", ".join(f"{found['accuracy']['0.5']['output'][way][1]:.1e}" for way in ("AP1", "AP2")),
        "6-8-6-1 against exact sums, weights of scale 0.5",
        BELIEF,
    ),
    Item(
        "Uncertain inputs (section 1): KL from marginalising, half the pixels missing",
        "",
        _pixels,
        "784-200-10, 1,000 images",
        MISSING,
    ),
)

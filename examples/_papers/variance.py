"""Variance back-propagation (Haussmann, Hamprecht & Kandemir): its tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _papers import Item, Run, percent

LOST = "the text at hand has lost its numbers"
TEN = "20,000 images, 10 epochs, warm-up of 8 (paper: 60,000, 100, none)"
TEN_SETTINGS = "--epochs 10 --train 20000 --warm-up 8"
OWN = "VBP, normal, identity-delta"


def _run(name: str, network: str, settings: str, more: str = "", each: tuple[int, ...] = ()) -> Run:
    """A run of ``vi_vbp.py`` whose file has ``more`` behind the network's name."""
    file = f"vi_vbp_{network}{more}.json"
    seeds = (lambda found: f"{len(found)} of {len(each)}") if each else "1"
    return Run(name, f"vi_vbp.py --network {network} {settings} --out RESULTS/{file}", file, seeds, each=each)


FULL = _run("vbp-400-full", "mlp-400", "--epochs 25", "_60000")
OWN_TERM = _run("vbp-400-own", "mlp-400", "--epochs 25 --expectation mean_predictor --only VBP", "_mean-predictor")
LONG = _run(
    "vbp-400-paper",
    "mlp-400",
    f"--expectation mean_predictor --only '{OWN}' --seed SEED",
    "_100-epochs_seed-SEED",
    (0, 1, 2),
)
CONV = _run("vbp-conv", "conv", TEN_SETTINGS)
FIGURE = Run("identity-delta", "identity_delta_figure.py", "identity_delta.png", data=False)


def _wrong(*keys: str) -> Callable[[Any], str]:
    """Errors of these ways, before pruning, at the mean weights."""
    return lambda found: ", ".join(percent(found["ways"][key]["error of mean"]) for key in keys)


def _seeds(found: Any) -> str:
    """Mean and range over the seeds that are there."""
    ends = [one["ways"][OWN]["error of mean"] for one in found]
    mean = percent(sum(ends) / len(ends))
    return mean if len(ends) == 1 else f"{mean} ({100 * min(ends):.2f} to {100 * max(ends):.2f})"


def _pruned(found: Any) -> str:
    pruning = found["ways"]["VBP, log-uniform, exact"]["pruning"]
    return ", ".join(percent(pruning[kind]["pruned"], 1) for kind in ("fixed", "histogram"))


BOTH = _wrong("BBB, normal", "VBP, normal, exact")
SPARSE = _wrong("VarOut 1", "VBP, log-uniform, exact")

ITEMS = (
    Item(
        "Proposition 3: max pools",
        found="the variant `identity_delta`",
        scale="the paper has no experiment; its supplement was not at hand",
    ),
    Item(
        "Section 4, footnote 3: Student t prior",
        found="`SampledPrior(StudentT(...))`",
        scale="a sampled divergence; the paper names it and has no experiment",
    ),
    Item("Figure 1: identity and delta", found="drawn", scale="after the text; the figure was not at hand", run=FIGURE),
    Item(
        "Table 1, 2 × 400: BBB normal, VBP normal", LOST, BOTH, "25 epochs of 60,000 images (paper: 100), `bound`", FULL
    ),
    Item(
        "Table 1, 2 × 400: VBP normal, the paper's data term",
        LOST,
        _wrong(OWN),
        "25 epochs of 60,000 images (paper: 100), `mean_predictor`",
        OWN_TERM,
    ),
    Item(
        "Table 1, 2 × 400: VBP normal, the paper's data term and length",
        LOST,
        _seeds,
        "the paper's: 100 epochs of 60,000 images, `mean_predictor`",
        LONG,
    ),
    Item("Table 1, 2 × 800: BBB normal, VBP normal", LOST, BOTH, TEN, _run("vbp-800", "mlp-800", TEN_SETTINGS)),
    Item("Table 1, 2 × 1200: BBB normal, VBP normal", LOST, BOTH, TEN, _run("vbp-1200", "mlp-1200", TEN_SETTINGS)),
    Item("Table 2, MNIST: VarOut, VBP log-uniform", LOST, SPARSE, TEN, CONV),
    Item(
        "Table 2, SVHN, CIFAR-10, CIFAR-100: the same",
        LOST,
        SPARSE,
        "none of the sets was at hand: 10,000 images of MNIST with a black edge, 5 epochs",
        _run("vbp-conv-32", "conv-32", "--epochs 5 --train 10000 --warm-up 4"),
    ),
    Item(
        "Table 2: pruned by the fixed and the variable threshold",
        LOST,
        _pruned,
        f"2 × 400; {TEN}",
        _run("vbp-thresholds", "mlp-400", f"{TEN_SETTINGS} --only 'VBP, log-uniform, exact'", "_thresholds"),
    ),
    Item(
        "Table 3: VarOut with 1, 10, 30 samples",
        LOST,
        _wrong("VarOut 1", "VarOut 10", "VarOut 30"),
        f"2 × 400; {TEN}",
        _run("vbp-400-warm-up", "mlp-400", TEN_SETTINGS, "_warm-up"),
    ),
    Item("Figure 2: learning curves", found="drawn", scale=TEN, run=CONV, picture="vi_vbp_conv.png"),
)

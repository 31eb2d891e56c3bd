"""Every table and figure of the five papers: what is printed, what we find, at which scale, and how to run it again.

    python examples/papers.py --list                        # all of them
    python examples/papers.py --list --paper vbp            # of one paper: ff, vbp, correlated, adf, bow-tie
    python examples/papers.py --run lenet --data DIR        # the command of a row; DIR/ holds mnist.npz and uci/
    python examples/papers.py --run lenet --data DIR --dry  # prints the command

A command has the settings of the committed file.  It goes on where it stopped, and keeps rows that are there; for a
run from nothing give it a path of its own behind ``--``, as in ``--run lenet --data DIR -- --out /tmp/lenet.json``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent
PAPERS = {
    "ff": "Feed-forward propagation (Shekhovtsov & Flach)",
    "vbp": "Variance back-propagation (Haussmann, Hamprecht & Kandemir)",
    "correlated": "Correlated parameters (Posch & Pilz)",
    "adf": "Assumed density filtering (Ghosh, Delle Fave & Yedidia)",
    "bow-tie": "Bow tie networks (Smith, Lawson & Linderman)",
}
LOST = "the text at hand has lost its numbers"


@dataclass(frozen=True)
class Item:
    """A table or figure.

    Args:
        paper: a key of :data:`PAPERS`.
        name: for ``--run``; items of one script share it.
        title: the paper's number of the item, and what it shows.
        printed: the paper's main figures; empty where it prints none.
        found: our figures, of the content of ``file``; text where they are a picture.
        scale: ours beside the paper's, or why the item is not repeated.
        seeds: how many, or splits.
        file: the result in ``examples/results``.
        command: script and settings, behind which ``--data DIR`` is added if ``data``.
        data: whether the script takes ``--data``.
    """

    paper: str
    name: str
    title: str
    printed: str = ""
    found: Callable[[Any], str] | str = ""
    scale: str = ""
    seeds: str = "–"
    file: str = ""
    command: str = ""
    data: bool = True

    @property
    def ours(self) -> str:
        """Our figures in words, read from the file; empty without it."""
        path = FOLDER / "results" / self.file
        if isinstance(self.found, str) or not path.exists():
            return self.found if isinstance(self.found, str) else ""
        return self.found(json.loads(path.read_text(encoding="utf-8")))


def _minus(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


_TEXTS = "docstrings of SciPy or scikit-learn | pbp"


def _percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f} %"


def _triple(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _wrong(*keys: str) -> Callable[[Any], str]:
    """Errors of these ways, before pruning, at the mean weights."""
    return lambda found: ", ".join(_percent(found["ways"][key]["error of mean"]) for key in keys)


def _net(*keys: str) -> Callable[[Any], str]:
    return lambda found: ", ".join(_percent(found["networks"][key]["error"]) for key in keys)


def _counts(key: str, level: str) -> Callable[[Any], str]:
    return lambda found: ", ".join(f"{value:,}" for value in found["networks"][key][level].values())


def _rho(*keys: str) -> Callable[[Any], str]:
    """Least and largest τ and ρ of weights."""

    def ours(found: Any) -> str:
        layers = [values for key in keys for values in found["networks"][key]["layers"].values()]
        texts = [f"{min(v[i] for v in layers):.2f} to {max(v[i] for v in layers):.2f}" for i in (0, 2)]
        return f"τ {texts[0]}, ρ {texts[1]}".replace("-", "−")

    return ours


def _bow_tie(name: str) -> Callable[[Any], str]:
    def ours(found: Any) -> str:
        rows = [row for key, row in found["uci"].items() if key.startswith(f"{name} |")]
        rmse, log_lik = (sum(row[key] for row in rows) / len(rows) for key in ("rmse", "log_lik"))
        return f"{rmse:.3f}, {log_lik:.3f}".replace("-", "−")

    return ours


def _of_pixel(found: Any) -> str:
    rows = found["table4"].values()
    return f"{min(min(r['mu']) for r in rows):.2f} to {max(max(r['mu']) for r in rows):.2f}"


def _last(values: list[float]) -> float:
    """The average over the last fifth of the validations."""
    return sum(values[-(len(values) // 5) :]) / (len(values) // 5)


def _over_plain(found: Any, way: str) -> float:
    rows = found["results"]
    return next(float(r["over_plain"]) for r in rows if r["network"] == "lenet" and r["propagation"] == way)


def _deep(found: Any) -> str:
    rows = [found["table3"][f"{case} | trained"]["eps_sigma_exact"][-1] for case in _CASES_3]
    return _triple(rows)


_CASES_3 = ("LReLU, noise 0.01", "LReLU, dropout 0.2", "Logistic Bernoulli", "Logistic transform, noise 0.01")
_LENET = "LeNet of 3 convolutions, 2 epochs of 60,000 images; 5 images, 4,000 samples (paper: 1,000)"
_CORRELATED = "vi_correlated_mnist.py --iterations 30000"
_SECOND = "vi_correlated_cifar.py --plain-iterations 2500 --iterations 2500"
_OTHER = "MNIST with a black edge, CIFAR-10 was not at hand; 2,500 steps (paper: 100,000 and 40,000)"
_SHORT = "30,000 steps (paper: 100,000)"
_TEN = "20,000 images, 10 epochs, warm-up of 8 (paper: 60,000, 100, none)"
_TIE = "3 splits; ReLU start, collapsed gates, prior not blind"


def _vbp(name: str, arguments: str) -> str:
    return f"vi_vbp.py --network {name} {arguments}"


ITEMS = (
    # ------------------------------------------------------------------ feed-forward propagation
    Item(
        "ff",
        "noise-through-lenet",
        "Figure 1: mean and σ through a LeNet",
        found="drawn",
        scale="one image, noise 0.1, one epoch of training; Monte Carlo of 2,000",
        seeds="1",
        file="noise_through_lenet.png",
        command="noise_through_lenet.py",
    ),
    Item("ff", "", "Figures 2, 3: Heaviside, ReLU, leaky ReLU", found="a page per op", scale="site's gallery of ops"),
    Item(
        "ff",
        "and-gate",
        "Table 1: AND gate, E[Y] at (¼, ¼)",
        "0.077",
        lambda found: f"{found['rows'][3]['E[Y]']:.4f}",
        "the paper's",
        "exact",
        "and_gate.json",
        "and_gate.py",
        False,
    ),
    Item(
        "ff",
        "lenet",
        "Table 2: ε_σ of the output: noise 1e-4, 0.01, 0.1",
        "0.63, 0.69, 0.79",
        lambda found: _triple(
            [found["table2"][f"LReLU, noise {n} | normalised"]["eps_sigma_fitted"][-1] for n in ("1e-4", "0.01", "0.1")]
        ),
        _LENET,
        "1",
        "lenet_mnist.json",
        "lenet_mnist.py",
    ),
    Item(
        "ff",
        "lenet",
        "Table 2: the same of dropout, Bernoulli, transform",
        "0.95, 0.93, 0.90",
        lambda found: _triple(
            [
                found["table2"][f"{c} | normalised"]["eps_sigma_fitted"][-1]
                for c in ("LReLU, dropout 0.2", "Logistic Bernoulli", "Logistic transform, noise 0.1")
            ]
        ),
        _LENET,
        "1",
        "lenet_mnist.json",
        "lenet_mnist.py",
    ),
    Item(
        "ff",
        "nine-layer",
        "Table 3: ε_σ at the pool: noise, dropout, Bernoulli, transform",
        "0.07, 0.69, 0.99, 0.01",
        _deep,
        "half the width, enlarged digits, 80 steps, exact ops (paper: CIFAR-10, trained, fitted)",
        "1",
        "nine_layer.json",
        "nine_layer.py",
    ),
    Item(
        "ff",
        "lenet",
        "Table 4: error of the data set's means",
        "0.04 to 0.52",
        _of_pixel,
        "2,000 images",
        "1",
        "lenet_mnist.json",
        "lenet_mnist.py",
    ),
    Item(
        "ff",
        "dropout",
        "Figure 4: accuracy, dropout 0.3 sampled and analytic, normalised",
        "a plot",
        lambda found: ", ".join(
            _percent(sum(_last(found["networks"][f"{k} | {s}"]["accuracy"]) for s in range(3)) / 3, 1)
            for k in ("dropout 0.3", "analytic 0.3, normalised")
        ),
        "LeNet, 1,000 images of MNIST, 50 epochs (paper: CIFAR-10); no control “sampled and normalised” yet",
        "3",
        "dropout_training.json",
        "dropout_training.py",
    ),
    Item(
        "ff",
        "stability",
        "Figure 5: accuracy at noise 0.8, sigmoid and Bernoulli",
        "a plot",
        lambda found: ", ".join(
            _percent(found["networks"][k]["gaussian"][8][0], 1) for k in ("sigmoid", "Bernoulli, AP2")
        ),
        "the paper's",
        "1",
        "stability.json",
        "stability.py",
    ),
    Item(
        "ff",
        "stability",
        "Figure D.1: the same at a gradient-sign attack of 0.1",
        "a plot",
        lambda found: ", ".join(_percent(found["networks"][k]["sign"][4][0], 1) for k in ("sigmoid", "Bernoulli, AP2")),
        "the paper's",
        "1",
        "stability.json",
        "stability.py",
    ),
    Item(
        "ff",
        "illustrations",
        "Figures C.1, C.3, C.4: illustrations",
        found="drawn",
        scale="the paper's",
        file="logistic_illustrations.png",
        command="logistic_illustrations.py",
        data=False,
    ),
    Item(
        "ff",
        "logistic",
        "Figure C.2: largest KL of AP2a, 2 inputs, bits",
        "a plot",
        lambda found: f"{found['largest']['2']['AP2a']:.4f}",
        "the paper's",
        "1,000 trials",
        "logistic_approximations.json",
        "logistic_approximations.py",
        False,
    ),
    Item(
        "ff",
        "",
        "Section 4: cost of a training step over a plain one, AP2 and normalised; LeNet",
        "3, 6",
        lambda found: ", ".join(f"{_over_plain(found, key):.2f}" for key in ("ap2", "ap2, normalised")),
        "one thread of a CPU, batch 256; `benchmarks/networks.py` measures again",
        "–",
        "../../benchmarks/results/networks_1_thread.json",
    ),
    Item(
        "ff",
        "",
        "C.4: variance of the logistic transform by PEA",
        scale="not built: the paper finds it inaccurate and unstable, and prints no formula",
    ),
    Item(
        "ff",
        "belief",
        "Sigmoid belief networks (the title): r.m.s. error of AP1, AP2",
        "",
        lambda found: ", ".join(f"{found['accuracy']['0.5']['output'][way][1]:.1e}" for way in ("AP1", "AP2")),
        "6-8-6-1 against exact sums, weights of scale 0.5",
        "20",
        "belief_network.json",
        "belief_network.py",
    ),
    Item(
        "ff",
        "missing-pixels",
        "Uncertain inputs (section 1): KL from marginalising, half the pixels missing",
        "",
        lambda found: (
            ", ".join(f"{found['missing']['0.5'][way]['KL']:.4f}" for way in ("mean filled", "AP2", "controlled"))
            + " (mean filled, AP2, controlled)"
        ),
        "784-200-10, 1,000 images",
        "1",
        "missing_pixels.json",
        "missing_pixels.py",
    ),
    # ----------------------------------------------------------------- variance back-propagation
    Item(
        "vbp",
        "",
        "Proposition 3: max pools",
        found="the variant `identity_delta`",
        scale="the paper has no experiment; its supplement was not at hand",
    ),
    Item("vbp", "", "Figure 1: identity and delta", scale="an illustration; not drawn"),
    Item(
        "vbp",
        "vbp-400-full",
        "Table 1, 2 × 400: BBB normal, VBP normal",
        LOST,
        _wrong("BBB, normal", "VBP, normal, exact"),
        "25 epochs of 60,000 images (paper: 100), `bound`",
        "1",
        "vi_vbp_mlp-400_60000.json",
        _vbp("mlp-400", "--epochs 25 --out RESULTS/vi_vbp_mlp-400_60000.json"),
    ),
    Item(
        "vbp",
        "vbp-400-own",
        "Table 1, 2 × 400: VBP normal, the paper's data term",
        LOST,
        _wrong("VBP, normal, identity-delta"),
        "25 epochs of 60,000 images (paper: 100), `mean_predictor`",
        "1",
        "vi_vbp_mlp-400_mean-predictor.json",
        _vbp(
            "mlp-400",
            "--epochs 25 --expectation mean_predictor --only VBP --out RESULTS/vi_vbp_mlp-400_mean-predictor.json",
        ),
    ),
    Item(
        "vbp",
        "vbp-400-paper",
        "Table 1, 2 × 400: VBP normal, the paper's data term and length",
        LOST,
        _wrong("VBP, normal, identity-delta"),
        "the paper's: 100 epochs of 60,000 images, `mean_predictor`; one of three seeds",
        "1",
        "vi_vbp_mlp-400_100-epochs_seed-0.json",
        _vbp(
            "mlp-400",
            "--expectation mean_predictor --only 'VBP, normal, identity-delta' "
            "--out RESULTS/vi_vbp_mlp-400_100-epochs_seed-0.json",
        ),
    ),
    Item(
        "vbp",
        "vbp-800",
        "Table 1, 2 × 800: BBB normal, VBP normal",
        LOST,
        _wrong("BBB, normal", "VBP, normal, exact"),
        _TEN,
        "1",
        "vi_vbp_mlp-800.json",
        _vbp("mlp-800", "--epochs 10 --train 20000 --warm-up 8"),
    ),
    Item(
        "vbp",
        "vbp-1200",
        "Table 1, 2 × 1200: BBB normal, VBP normal",
        LOST,
        _wrong("BBB, normal", "VBP, normal, exact"),
        _TEN,
        "1",
        "vi_vbp_mlp-1200.json",
        _vbp("mlp-1200", "--epochs 10 --train 20000 --warm-up 8"),
    ),
    Item(
        "vbp",
        "vbp-conv",
        "Table 2, MNIST: VarOut, VBP log-uniform",
        LOST,
        _wrong("VarOut 1", "VBP, log-uniform, exact"),
        _TEN,
        "1",
        "vi_vbp_conv.json",
        _vbp("conv", "--epochs 10 --train 20000 --warm-up 8"),
    ),
    Item(
        "vbp",
        "vbp-conv-32",
        "Table 2, SVHN, CIFAR-10, CIFAR-100: the same",
        LOST,
        _wrong("VarOut 1", "VBP, log-uniform, exact"),
        "none of the sets was at hand: 10,000 images of MNIST with a black edge, 5 epochs",
        "1",
        "vi_vbp_conv-32.json",
        _vbp("conv-32", "--epochs 5 --train 10000 --warm-up 4"),
    ),
    Item(
        "vbp",
        "vbp-thresholds",
        "Table 2: pruned by the fixed and the variable threshold",
        LOST,
        lambda found: ", ".join(
            _percent(found["ways"]["VBP, log-uniform, exact"]["pruning"][k]["pruned"], 1)
            for k in ("fixed", "histogram")
        ),
        f"2 × 400; {_TEN}",
        "1",
        "vi_vbp_mlp-400_thresholds.json",
        _vbp(
            "mlp-400",
            "--epochs 10 --train 20000 --warm-up 8 --only 'VBP, log-uniform, exact' "
            "--out RESULTS/vi_vbp_mlp-400_thresholds.json",
        ),
    ),
    Item(
        "vbp",
        "vbp-400-warm-up",
        "Table 3: VarOut with 1, 10, 30 samples",
        LOST,
        _wrong("VarOut 1", "VarOut 10", "VarOut 30"),
        f"2 × 400; {_TEN}",
        "1",
        "vi_vbp_mlp-400_warm-up.json",
        _vbp("mlp-400", "--epochs 10 --train 20000 --warm-up 8 --out RESULTS/vi_vbp_mlp-400_warm-up.json"),
    ),
    Item(
        "vbp",
        "vbp-conv",
        "Figure 2: learning curves",
        found="drawn",
        scale=_TEN,
        seeds="1",
        file="vi_vbp_conv.png",
        command=_vbp("conv", "--epochs 10 --train 20000 --warm-up 8"),
    ),
    # --------------------------------------------------------------------- correlated parameters
    Item(
        "correlated",
        "correlated-lenet",
        "Table I, 100 units: plain, correlated",
        "0.84 %, 0.70 %",
        _net("plain, 100", "correlated, 100"),
        _SHORT,
        "1",
        "vi_correlated_mnist.json",
        _CORRELATED,
    ),
    Item(
        "correlated",
        "correlated-lenet-full",
        "Table I, 100 units, at full length: correlated",
        "0.70 %",
        _net("correlated, 100"),
        "the paper's 100,000 steps; plain and 250 units not yet",
        "1",
        "vi_correlated_mnist_100000.json",
        "vi_correlated_mnist.py --kinds correlated --units 100 --every 2500 "
        "--out RESULTS/vi_correlated_mnist_100000.json",
    ),
    Item(
        "correlated",
        "correlated-lenet",
        "Table I, 250 units: plain, correlated",
        "0.70 %, 0.61 %",
        _net("plain, 250", "correlated, 250"),
        _SHORT,
        "1",
        "vi_correlated_mnist.json",
        _CORRELATED,
    ),
    Item(
        "correlated",
        "correlated-lenet",
        "Table II: τ and ρ of weights",
        "τ 0.03 to 2.02, ρ −0.44 to −0.15",
        _rho("correlated, 100", "correlated, 250"),
        _SHORT,
        "1",
        "vi_correlated_mnist.json",
        _CORRELATED,
    ),
    Item(
        "correlated",
        "correlated-lenet",
        "Table III, 100 units: right certain, uncertain, wrong certain, uncertain",
        "9,668, 262, 14, 56",
        _counts("correlated, 100", "95%"),
        _SHORT,
        "1",
        "vi_correlated_mnist.json",
        _CORRELATED,
    ),
    Item(
        "correlated",
        "correlated-lenet",
        "Table III, 250 units: the same",
        "9,587, 352, 8, 53",
        _counts("correlated, 250", "95%"),
        _SHORT,
        "1",
        "vi_correlated_mnist.json",
        _CORRELATED,
    ),
    Item(
        "correlated",
        "correlated-second",
        "Table IV: plain, correlated",
        "20.9 %, 20.32 %",
        _net("plain", "correlated"),
        _OTHER,
        "1",
        "vi_correlated_cifar.json",
        _SECOND,
    ),
    Item(
        "correlated",
        "correlated-second",
        "Table V: τ and ρ of weights",
        "τ 0.04 to 0.46, ρ −0.49 to −0.29",
        _rho("correlated"),
        _OTHER,
        "1",
        "vi_correlated_cifar.json",
        _SECOND,
    ),
    Item(
        "correlated",
        "correlated-second",
        "Table VI, 95 %",
        "5,894, 2,074, 403, 1,629",
        _counts("correlated", "95%"),
        _OTHER,
        "1",
        "vi_correlated_cifar.json",
        _SECOND,
    ),
    Item(
        "correlated",
        "correlated-second",
        "Table VI, 99 %",
        "5,281, 2,687, 250, 1,782",
        _counts("correlated", "99%"),
        _OTHER,
        "1",
        "vi_correlated_cifar.json",
        _SECOND,
    ),
    Item(
        "correlated",
        "correlated-lenet",
        "Figures 1, 2: training",
        found="drawn",
        scale=_SHORT,
        seeds="1",
        file="vi_correlated_mnist_training.png",
        command=_CORRELATED,
    ),
    Item(
        "correlated",
        "correlated-lenet",
        "Figures 3 to 5: boxplots of outputs",
        found="drawn",
        scale=_SHORT,
        seeds="1",
        file="vi_correlated_mnist_boxes.png",
        command=_CORRELATED,
    ),
    Item(
        "correlated",
        "correlated-lenet",
        "Figure 6: certain and wrong images",
        found="drawn",
        scale=_SHORT,
        seeds="1",
        file="vi_correlated_mnist_wrong.png",
        command=_CORRELATED,
    ),
    Item(
        "correlated",
        "correlated-second",
        "Figures 7, 8: training",
        found="drawn",
        scale=_OTHER,
        seeds="1",
        file="vi_correlated_cifar_training.png",
        command=_SECOND,
    ),
    # ------------------------------------------------------------------- assumed density filtering
    Item("adf", "", "Tables 1, 2: sizes of the sets", scale="nothing to repeat; see [misprints](../misprints.md)"),
    Item(
        "adf",
        "adf-uci",
        "Table 3: RMSE of nine sets; boston: EBP 2, PBP 2 layers",
        "3.14, 2.79",
        lambda found: ", ".join(f"{found['sets'][f'{way} | 2 | boston']['rmse']:.2f}" for way in ("ebp", "pbp")),
        "the paper's, 40 passes",
        "20, protein 5",
        "adf_uci.json",
        "adf_uci.py",
    ),
    Item("adf", "", "Table 3: Year Prediction", "EBP 9.21, PBP 8.21", scale="the set, 515,345 rows, was not at hand"),
    Item(
        "adf",
        "adf-uci",
        "Figure 1, left: log-likelihoods of regression; boston: EBP, PBP",
        "a plot",
        lambda found: ", ".join(
            f"{found['sets'][f'{way} | 2 | boston']['log_prob']:.3f}".replace("-", "−") for way in ("ebp", "pbp")
        ),
        "nine of ten sets",
        "20, protein 5",
        "adf_uci.json",
        "adf_uci.py",
    ),
    Item(
        "adf",
        "adf-classes",
        "Figure 1, right: log-likelihoods of six sets of texts",
        "a plot",
        lambda found: f"one other set, PBP: {_minus(found['binary'][_TEXTS]['log_prob'], 3)}",
        "the texts were not at hand; 2,000 docstrings of two libraries, all words",
        "5",
        "adf_classes.json",
        "adf_classes.py",
    ),
    Item(
        "adf",
        "adf-classes",
        "Figure 2: samples and bound, MNIST, PBP: log-likelihood",
        "a plot",
        lambda found: ", ".join(
            f"{found['classes'][f'MNIST | pbp | {how}']['log_prob']:.4f}".replace("-", "−")
            for how in ("100 samples", "log bound")
        ),
        "5 epochs (paper: 100); HAR and Sensorless Drive were not at hand",
        "1",
        "adf_classes.json",
        "adf_classes.py",
    ),
    Item(
        "adf",
        "adf-classes",
        "Figure 3: variance of the sampled log-likelihood, 1, 10, 100 samples, 100 classes",
        "a plot",
        lambda found: ", ".join(
            f"{found['variance']['100'][f'{n} samples']['variance_of_one_datum']:.2g}" for n in (1, 10, 100)
        ),
        "own synthetic data, of one datum",
        "50 repeats",
        "adf_classes.json",
        "adf_classes.py",
    ),
    Item(
        "adf",
        "",
        "Main paper: texts with a fifth of the features, and its own tables",
        scale="out of reach: neither the main paper's text nor its sets of texts were at hand, only the supplement",
    ),
    # ---------------------------------------------------------------------------- bow tie networks
    *(
        Item(
            "bow-tie",
            "bow-tie",
            f"Table 1, {name}: RMSE, log-likelihood",
            printed,
            _bow_tie(name),
            _TIE,
            "3 splits",
            "bow_tie_uci.json",
            "bow_tie_uci.py --splits 3",
        )
        for name, printed in (
            ("energy", "1.096, −1.334"),
            ("wine", "0.651, −0.992"),
            ("yacht", "0.896, −1.139"),
            ("boston", "lost in the text"),
            ("concrete", "lost in the text"),
        )
    ),
    Item(
        "bow-tie",
        "bow-tie-sweep",
        "Table 1 by the paper's own sweep; yacht's first split: RMSE, log-likelihood",
        "0.896, −1.139",
        lambda found: ", ".join(_minus(found["mixing"]["yacht, the paper's sweep"][k], 3) for k in ("rmse", "log_lik")),
        "one split; the command runs all splits of all sets, for many hours",
        "1 split",
        "bow_tie_uci.json",
        "bow_tie_uci.py --papers-sweep",
    ),
    Item(
        "bow-tie",
        "",
        "Appendix A: full Σ₀ of a unit's weights",
        found="`ConjugatePrior(cov=...)`",
        scale="tested against the log joint; the paper's runs do not say which they have",
    ),
    Item(
        "bow-tie",
        "",
        "Section 3: full noise covariances, inverse Wishart prior",
        scale="not built: the paper's conditionals have diagonal noise, without which gates depend on each other",
    ),
    Item(
        "bow-tie",
        "bow-tie-figure",
        "Figure 1: activation given its input",
        found="drawn",
        scale="the paper's",
        file="bow_tie.png",
        command="bow_tie_figure.py",
        data=False,
    ),
)


def command(name: str, data: Path | None, more: list[str]) -> list[str]:
    """What runs the items of this name.

    Raises:
        SystemExit: for another name, or without a folder of data where the script needs one.
    """
    chosen = next((item for item in ITEMS if item.name == name and item.command), None)
    if chosen is None:
        names = ", ".join(sorted({item.name for item in ITEMS if item.command}))
        raise SystemExit(f"papers.py: no item {name!r}; one of {names}")
    if chosen.data and data is None:
        raise SystemExit(f"papers.py: {name} needs --data DIR, with mnist.npz and uci/")
    script, *settings = shlex.split(chosen.command.replace("RESULTS", str(FOLDER / "results")))
    given = ["--data", str(data)] if chosen.data else []
    return [sys.executable, str(FOLDER / script), *given, *settings, *more]


def show(paper: str | None, console: Console) -> None:
    for key, title in PAPERS.items():
        if paper in (None, key):
            table = Table(title=title)
            for column in ("item", "printed", "here", "scale, or why not done", "seeds", "file", "--run"):
                table.add_column(column)
            for item in ITEMS:
                if item.paper == key:
                    ours = item.ours or "not done"
                    name = item.name if item.command else ""
                    table.add_row(item.title, item.printed, ours, item.scale, item.seeds, item.file, name)
            console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show every table and figure")
    parser.add_argument("--paper", choices=list(PAPERS), help="only those of this paper")
    parser.add_argument("--run", metavar="NAME", help="run the command of this item")
    parser.add_argument("--data", type=Path, help="folder with mnist.npz and uci/")
    parser.add_argument("--dry", action="store_true", help="print the command, run nothing")
    parser.add_argument("more", nargs="*", help="further arguments of the command")
    arguments = parser.parse_args()
    if arguments.run:
        line = command(arguments.run, arguments.data, arguments.more)
        print(shlex.join(line), flush=True)
        if not arguments.dry:
            raise SystemExit(subprocess.run(line, check=False).returncode)
    else:
        show(arguments.paper, Console(width=None if Console().is_terminal else 200))


if __name__ == "__main__":
    main()

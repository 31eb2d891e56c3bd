"""Tables and sentences of the papers' pages and docs/momentgen-and.md, computed from the result files that they cite.

    python docs/hooks/paper_tables.py        # writes the tables anew into docs/*.md and docs/results/*.md

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``.  A sentence with computed figures is
written by hand; :data:`SENTENCES` computes the part with the figures, and a test looks for it on the page.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import package_tables

__all__ = ["SENTENCES", "TABLES", "unfounded", "written"]

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "results"
EXAMPLES = ROOT / "examples"


def read(name: str) -> Any:
    """A result file of the examples."""
    return json.loads((ROOT / "examples" / "results" / f"{name}.json").read_text(encoding="utf-8"))


@functools.cache
def example(name: str) -> Any:
    """A script of the examples, as a module; names of its folder stay free, since benchmarks have the same ones."""
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    aside = {other: sys.modules.pop(other) for other in names & sys.modules.keys()}
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))
        for other in names & sys.modules.keys():
            del sys.modules[other]
        sys.modules.update(aside)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in (head, *rows)]
    return "\n".join([lines[0], "|" + " --- |" * len(head), *lines[1:]])


def percent(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{100 * value:.{digits}f} %"


def signed(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


# ------------------------------------------------------- variance back-propagation

VBP = {
    "plain": "plain, dropout",
    "VBP, normal, exact": "VBP, normal prior, exact moments of ReLU",
    "VBP, normal, identity-delta": "VBP, normal prior, identity-delta",
    "VBP, log-uniform, exact": "VBP, log-uniform prior, exact moments of ReLU",
    "VBP, log-uniform, identity-delta": "VBP, log-uniform prior, identity-delta",
    "VarOut 1": "variational dropout, 1 sample",
    "VarOut 10": "variational dropout, 10 samples",
    "VarOut 30": "variational dropout, 30 samples",
    "BBB, normal": "Bayes by Backprop, normal prior",
    "BBB, mixture": "Bayes by Backprop, mixture prior",
}


def _mean_error(ways: Any, key: str) -> str:
    return percent(ways[key]["error of mean"]) if key in ways else ""


def _pruned(ways: Any, key: str, kind: str = "fixed") -> str:
    found = ways.get(key, {}).get("pruning", {}).get(kind, {})
    return f"{percent(found['pruned'], 1)}, {percent(found['error'])}" if "pruned" in found else ""


def vbp_main() -> str:
    whole, warm, conv = (read(f"vi_vbp_{name}")["ways"] for name in ("mlp-400", "mlp-400_warm-up", "conv"))
    rows = [
        [
            name,
            _mean_error(whole, key),
            _mean_error(warm, key),
            _pruned(warm, key),
            _mean_error(conv, key),
            _pruned(conv, key),
        ]
        for key, name in VBP.items()
    ]
    return table(
        ["", "no warm-up", "warm-up", "pruned, error then", "convolutional, warm-up", "pruned, error then"], rows
    )


def vbp_full() -> str:
    ways = read("vi_vbp_mlp-400_60000")["ways"]
    rows = []
    for key, name in VBP.items():
        if key in ways:
            best = percent(min(ways[key]["history"]["error"]))
            rows.append([name, _mean_error(ways, key), best, percent(ways[key].get("error")), _pruned(ways, key)])
    return table(["60,000 images, 25 epochs", "error", "best on the way", "predicted", "pruned, error then"], rows)


#: files of the paper's own data term, and what they hold
MEAN_PREDICTOR = (
    "vi_vbp_mlp-400_mean-predictor",
    *(f"vi_vbp_mlp-400_100-epochs_seed-{seed}" for seed in range(3)),
)


def vbp_mean_predictor() -> str:
    rows = []
    for file in MEAN_PREDICTOR:
        if not (ROOT / "examples" / "results" / f"{file}.json").exists():
            continue
        found = read(file)
        for key, name in VBP.items():
            if key in found["ways"]:
                row, settings = found["ways"][key], found["settings"]
                errors = row["history"]["error"]
                rows.append([name, str(settings["epochs"]), str(settings["seed"]), percent(row["error of mean"])])
                rows[-1] += [f"{percent(min(errors))} after {errors.index(min(errors)) + 1}"]
                rows[-1] += [percent(row["error"]), _pruned(found["ways"], key)]
    head = ["60,000 images, `mean_predictor`", "epochs", "seed", "error", "best, after epochs", "predicted"]
    return table([*head, "pruned, error then"], rows)


def vbp_wide() -> str:
    names = ("mlp-800", "mlp-1200", "conv-32")
    files = [read(f"vi_vbp_{name}")["ways"] for name in names]
    keys = [key for key in VBP if any(key in ways for ways in files)]
    rows = [
        [VBP[key], *(cell for ways in files for cell in (_mean_error(ways, key), _pruned(ways, key)))] for key in keys
    ]
    head = [cell for name in ("2 × 800", "2 × 1200", "32 × 32") for cell in (name, "pruned, error then")]
    return table(["", *head], rows)


def vbp_thresholds() -> str:
    ways = read("vi_vbp_mlp-400_thresholds")["ways"]
    rows = []
    for key, name in VBP.items():
        if key in ways:
            row = ways[key]
            cells = [percent(row["error of mean"]), percent(row["error"])]
            for kind in ("fixed", "histogram"):
                found = row["pruning"][kind]
                cells += [signed(found["threshold"], 1)] if kind == "histogram" and "pruned" in found else []
                cells += ["none: one peak", ""] if "pruned" not in found else []
                cells += (
                    [percent(found["pruned"], 1), f"{percent(found['error'])}, {percent(found['predicted'])}"]
                    if "pruned" in found
                    else [""]
                )
            rows.append([name, *cells])
    head = ["", "error of means", "predicted", "pruned above 3", "error, predicted", "valley at log α"]
    return table([*head, "pruned above it", "error, predicted"], rows)


# ------------------------------------------------------------ correlated parameters


def _correlated(name: str) -> Any:
    return read(f"vi_correlated_{name}")["networks"]


def correlated_mnist() -> str:
    TABLE1, TABLE3 = (getattr(example("vi_correlated_mnist"), name) for name in ("TABLE1", "TABLE3"))

    rows = []
    for units in ("100", "250"):
        plain, own = (_correlated("mnist")[f"{kind}, {units}"] for kind in ("plain", "correlated"))
        counts, printed = own["95%"], TABLE3[f"correlated, {units}"]["95%"]
        cells = [
            f"{percent(row['error'])} (printed {100 * TABLE1[f'{kind}, {units}']:.2f})"
            for kind, row in (("plain", plain), ("correlated", own))
        ]
        for index, kind in enumerate(("right", "wrong")):
            here, there = [counts[f"{kind} certain"], counts[f"{kind} uncertain"]], printed[2 * index : 2 * index + 2]
            cells.append(f"{here[0]:,}, {here[1]:,} (printed {there[0]:,}, {there[1]:,})")
        rows.append([units, *cells])
    head = ["units", "plain, dropout and weight decay", "correlated", "right: certain, uncertain"]
    return table([*head, "wrong: certain, uncertain"], rows)


def correlated_full() -> str:
    """Errors on the way to the paper's 100,000 steps."""
    row = _correlated("mnist_100000")["correlated, 100"]
    history = dict(zip(row["history"]["step"], row["history"]["error"], strict=True))
    steps = [step for step in (10_000, 20_000, 30_000, 50_000, 70_000, 90_000, 100_000) if step in history]
    counts = row["95%"]
    return table(
        [*(f"{step:,} steps" for step in steps), "mean of 200 draws", "right: certain, uncertain", "wrong"],
        [
            [*(percent(history[step]) for step in steps), f"{percent(row['error'])} (printed 0.70)"]
            + [f"{counts[f'{kind} certain']:,}, {counts[f'{kind} uncertain']:,}" for kind in ("right", "wrong")]
        ],
    )


def correlated_layers() -> str:
    TABLE5 = example("vi_correlated_cifar").TABLE5
    TABLE2 = example("vi_correlated_mnist").TABLE2

    rows = []
    for title, found, printed in (
        (
            "LeNet, 100, full length",
            _correlated("mnist_100000")["correlated, 100"],
            example("vi_correlated_mnist").TABLE2["correlated, 100"],
        ),
        ("LeNet, 100", _correlated("mnist")["correlated, 100"], TABLE2["correlated, 100"]),
        ("LeNet, 250", _correlated("mnist")["correlated, 250"], TABLE2["correlated, 250"]),
        ("second network", _correlated("cifar")["correlated"], TABLE5["correlated"]),
    ):
        for layer, values in found["layers"].items():
            theirs = [signed(value, 2) for value in printed[layer]]
            pairs = zip((signed(value, 2) for value in values), theirs, strict=True)
            rows.append([title, layer, *(f"{ours} ({other})" for ours, other in pairs)])
    return table(["network", "layer", "τ (printed)", "τ of biases", "ρ", "ρ of biases"], rows)


# -------------------------------------------------------------------- bow tie networks


def _uci(key: str, name: str) -> list[float]:
    return [row[key] for split, row in read("bow_tie_uci")["uci"].items() if split.split(" | ")[0] == name]


def plus_minus(values: Sequence[float]) -> str:
    return f"{signed(statistics.fmean(values), 3)} ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}"


#: the columns of the paper's table 1: RMSE and log-likelihood of BBB, fBNN and bow tie networks
BOW_TIE = {
    "yacht": ["1.174 ± 0.086", "0.607 ± 0.068", "0.896 ± 0.083", "−2.408 ± 0.007", "−1.033 ± 0.033", "−1.139 ± 0.093"],
    "energy": ["0.565 ± 0.018", "0.412 ± 0.017", "1.096 ± 0.086", "−1.500 ± 0.006", "−0.684 ± 0.020", "−1.334 ± 0.060"],
    "boston": ["–"] * 6,
    "concrete": ["–"] * 6,
    "wine": ["0.643 ± 0.012", "0.673 ± 0.014", "0.651 ± 0.020", "−0.977 ± 0.017", "−1.040 ± 0.013", "−0.992 ± 0.059"],
}


def bow_tie_main() -> str:
    rows = []
    for name, printed in BOW_TIE.items():
        here = [plus_minus(_uci(key, name)) for key in ("rmse", "log_lik")]
        rows.append(
            [name, str(len(_uci("rmse", name))), here[0], *_by_paper(printed[:3]), here[1], *_by_paper(printed[3:])]
        )
    printed_head = ["bow tie, printed", "BBB, printed", "fBNN, printed"]
    return table(["set", "splits", "RMSE", *printed_head, "log-likelihood", *printed_head], rows)


def _by_paper(cells: list[str]) -> list[str]:
    return [cells[2], cells[0], cells[1]]


def bow_tie_chains() -> str:
    rows = []
    for name in BOW_TIE:
        keys = ("sigma_y", "log_joint", "predictions", "predictions_worst")
        hat = ", ".join(f"{statistics.median(_uci(f'r_hat_{key}', name)):.2f}" for key in keys)
        seconds = f"{min(_uci('seconds', name)) / 2:.0f} to {max(_uci('seconds', name)) / 2:.0f}"
        sigma = ", ".join(f"{value:.2f}" for value in _uci("sigma_y", name))
        rows.append([name, hat, sigma, seconds])
    head = ["set", "R̂ of σ, log joint, predictions (median, worst)", "σ of the noise over the targets', by split"]
    return table([*head, "seconds per chain of 27,000 sweeps"], rows)


def bow_tie_mixing() -> str:
    rows = []
    for key, row in read("bow_tie_uci")["mixing"].items():
        names = ("sigma_y", "log_joint", "predictions", "predictions_worst")
        hat = ", ".join(f"{row[f'r_hat_{name}']:.2f}" for name in names)
        ess = ", ".join(f"{row[f'ess_{name}']:.0f}" for name in names)
        cells = [f"{row['rmse']:.3f}", signed(row["log_lik"], 3), hat, ess, f"{row['seconds']:.0f}"]
        rows.append([key.removeprefix("yacht, "), *cells])
    head = ["yacht, first split", "RMSE", "log-likelihood", "R̂ of σ, log joint, predictions (median, worst)"]
    return table([*head, "ESS of the same", "seconds"], rows)


# ----------------------------------------------------------- assumed density filtering

#: set -> printed RMSE: EBP 2, PBP 2, EBP 5, PBP 5 layers
ADF = {
    "yacht": ["1.14 ± 0.45", "0.85 ± 0.05", "5.58 ± 5.77", "1.71 ± 0.23"],
    "boston": ["3.14 ± 0.93", "2.79 ± 0.16", "9.33 ± 1.0", "3.08 ± 0.15"],
    "energy": ["1.38 ± 0.17", "0.90 ± 0.04", "3.54 ± 3.03", "1.18 ± 0.06"],
    "concrete": ["5.30 ± 0.77", "5.24 ± 0.11", "6.33 ± 0.91", "5.96 ± 0.16"],
    "wine": ["0.71 ± 0.06", "0.64 ± 0.00", "0.82 ± 0.04", "0.64 ± 0.01"],
    "kin8nm": ["0.07 ± 0.22", "0.07 ± 0.00", "0.18 ± 0.09", "0.08 ± 0.00"],
    "power": ["4.21 ± 0.23", "4.03 ± 0.03", "4.56 ± 0.25", "4.08 ± 0.04"],
    "naval": ["0.007 ± 0.00", "0.003 ± 0.00", "0.007 ± 0.00", "0.004 ± 0.00"],
    "protein": ["2.14 ± 0.17", "4.25 ± 0.02", "2.04 ± 0.15", "3.97 ± 0.04"],
}


def _rmse(method: str, layers: int, name: str) -> str:
    row = read("adf_uci")["sets"][f"{method} | {layers} | {name}"]
    value, error = row["rmse"], row["rmse_se"]
    digits = 5 if value < 0.02 else 4 if value < 0.08 else 3 if error < 0.09 else 2
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def adf_two() -> str:
    rows = [[name, _rmse("pbp", 2, name), p[1], _rmse("ebp", 2, name), p[0]] for name, p in ADF.items()]
    return table(["set", "PBP", "printed", "EBP", "printed"], rows)


def adf_deep(method: str) -> str:
    column = {"ebp": 2, "pbp": 3}[method]
    rows = [[name, _rmse(method, 4, name), _rmse(method, 5, name), p[column]] for name, p in ADF.items()]
    name = method.upper()
    return table(["set", f"{name}, 4 layers", f"{name}, 5 layers", "printed, “5 layers”"], rows)


def adf_log_lik() -> str:
    columns = [("pbp", 2), ("ebp", 2), ("pbp", 4), ("pbp", 5)]

    def cell(name: str, method: str, layers: int) -> str:
        row = read("adf_uci")["sets"][f"{method} | {layers} | {name}"]
        return f"{signed(row['log_prob'], 3)} ± {row['log_prob_se']:.3f}"

    rows = [[name, *(cell(name, *column) for column in columns)] for name in ADF]
    return table(["set", *(f"{method.upper()}, {layers} layers" for method, layers in columns)], rows)


def adf_classes() -> str:
    found = read("adf_classes")["classes"]
    rows = []
    for how in ("100 samples", "1 sample", "log bound"):
        cells = [found[f"{data} | {way} | {how}"] for data in ("MNIST", "digits") for way in ("pbp", "ebp")]
        rows.append([how, *(f"{percent(row['error'])}, {signed(row['log_prob'], 4)}" for row in cells)])
    return table(["softmax", "MNIST, PBP", "MNIST, EBP", "digits, PBP", "digits, EBP"], rows)


def class_posteriors() -> str:
    """The largest error of a probability by each approximation."""
    results = json.loads((ROOT / "benchmarks" / "results" / "softmax.json").read_text(encoding="utf-8"))
    variants = list(results["extremes"])
    rows = [
        [str(row["classes"]), f"{row['sigma']:g}", *(f"{row[variant]['max_error']:.2g}" for variant in variants)]
        for row in results["table"]
    ]
    return table(["classes", "σ of the logits", *variants], rows)


# ---------------------------------------------------------------- feed-forward propagation


def ff_lenet(kind: str) -> str:
    """``mu`` or ``sigma``: every case and network of table 2 beside the paper's."""
    CASES, COLUMNS = (getattr(example("lenet_mnist"), name) for name in ("CASES", "COLUMNS"))

    found, rows = read("lenet_mnist")["table2"], []
    keys = {"mu": ["ap1", "fitted", "exact"], "sigma": ["fitted", "exact"]}[kind]
    for case, (_, _, paper) in CASES.items():
        for key in keys:
            name = f"eps_{kind}_{key}"
            printed = paper.get(name if key == "ap1" else f"eps_{kind}_ap2")
            label = "AP1" if key == "ap1" else f"AP2, {key}"
            if printed and key != "exact":
                rows.append([f"{case}: the paper, {label}", *(f"{value:.2f}" for value in printed)])
            for net in ("plain", "normalised"):
                values = found[f"{case} | {net}"][name]
                rows.append([f"{net} net, {label}", *(f"{value:.3f}" for value in values)])
    return table(["", *COLUMNS], rows)


def ff_kl() -> str:
    CASES = example("lenet_mnist").CASES

    found, rows = read("lenet_mnist")["table2"], []
    for case, (_, _, paper) in CASES.items():
        rows.append([f"{case}: the paper", *(f"{value:.2g}" for value in paper["kl"]), "", ""])
        for net in ("plain", "normalised"):
            row = found[f"{case} | {net}"]
            names = ("kl_ap1", "kl_fitted_simplified", "kl_fitted_logistic", "kl_exact_simplified", "kl_exact_logistic")
            rows.append([f"{net} net", *(f"{row[name]:.2g}" for name in names)])
    head = ["", "AP1", "AP2 fitted, simplified", "AP2 fitted, logistic", "AP2 exact, simplified", "AP2 exact, logistic"]
    return table(head, rows)


def ff_output() -> str:
    """σ of the output by exact ops over Monte Carlo's."""
    nine, lenet = read("nine_layer")["table3"], read("lenet_mnist")["table2"]
    rows = []
    for name, of_nine, of_lenet in (
        ("leaky ReLU, noise on the input (0.01; LeNet 0.1)", "LReLU, noise 0.01", "LReLU, noise 0.1"),
        ("leaky ReLU, dropout 0.2", "LReLU, dropout 0.2", "LReLU, dropout 0.2"),
        ("logistic Bernoulli units", "Logistic Bernoulli", "Logistic Bernoulli"),
        (
            "logistic transform, noise on the input (0.01; LeNet 0.1)",
            "Logistic transform, noise 0.01",
            "Logistic transform, noise 0.1",
        ),
    ):
        cells = [nine[f"{of_nine} | {state}"] for state in ("untrained", "trained")]
        cells += [lenet[f"{of_lenet} | {state}"] for state in ("plain", "normalised")]
        rows.append([name, *(f"{cell['eps_sigma_exact'][-1]:.2f}" for cell in cells)])
    networks = ["nine layers, untrained", "nine layers, trained", "LeNet, trained"]
    return table(["", *networks, "LeNet with normalisation, trained"], rows)


def ff_statistics() -> str:
    TABLE4 = example("lenet_mnist").TABLE4

    found, rows = read("lenet_mnist")["table4"], []
    for (kind, how), printed in TABLE4.items():
        for key, values in zip(("mu", "sigma"), printed, strict=True):
            label = f"{kind}, {how}, ε of {'means' if key == 'mu' else 'σ'}"
            rows.append([f"{label}: the paper", *(f"{value:.2f}" for value in values)])
            rows.append(["here", *(f"{value:.2f}" for value in found[f"{kind} | {how}"][key])])
    return table(["activation, initialisation", "C1", "A1", "C2", "A2", "C3", "A3", "F"], rows)


def ff_nine() -> str:
    """ε_σ at seven of the eighteen places of table 3."""
    cases, columns = (getattr(example("nine_layer"), name) for name in ("CASES", "COLUMNS"))
    places = ("A1", "C2", "C3", "C5", "C7", "C9", "P")
    rows = []
    for case, (_, _, paper) in cases.items():
        kinds = {"the paper, fitted, trained": paper["eps_sigma_ap2"]}
        for state, key in itertools.product(("untrained", "trained"), ("fitted", "exact")):
            kinds[f"{state}, {key}"] = read("nine_layer")["table3"][f"{case} | {state}"][f"eps_sigma_{key}"]
        for kind, values in kinds.items():
            picked = [values[columns.index(place)] for place in places]
            cells = ["–" if value is None else f"{value:.2f}" for value in picked]
            rows.append([f"{case}: {kind}" if "paper" in kind else kind, *cells])
    return table(["", *places], rows)


def ff_scratch() -> str:
    rows = []
    for name, row in read("from_scratch")["networks"].items():
        losses = f"{row['loss_first']:.3f} → {row['loss_last']:.3f}"
        rows.append([name, f"{row['least_variance']:.1e}", losses, percent(row["accuracy_ap2"], 1)])
    return table(["", "least variance of an output", "loss, first and last 5 %", "test accuracy, AP2"], rows)


def ff_cost() -> str:
    rows = []
    for key, name in (("mlp", "MLP 784-1024-1024-10"), ("lenet", "LeNet")):
        for threads in ("1_thread", "2_threads"):
            path = ROOT / "benchmarks" / "results" / f"networks_{threads}.json"
            found = json.loads(path.read_text(encoding="utf-8"))["results"]
            over = {row["propagation"]: row["over_plain"] for row in found if row["network"] == key}
            ways = [over[f"ap2{more}"] for more in ("", ", varying noise", ", normalised")]
            cells = [f"{way:.2f}" for way in (*ways, ways[2] - ways[0])]
            rows.append([name, threads[0], *cells])
    rows.append(["the paper's implementation", "", "3", "", "6", "3"])
    return table(
        ["", "threads", "one variance for all pixels", "one for each", "with normalisation", "which adds"], rows
    )


def ff_dropout() -> str:
    last = example("dropout_training").last

    networks = read("dropout_training")["networks"]
    names = {
        "plain": "plain",
        "dropout 0.2": "dropout 0.2, sampled",
        "dropout 0.3": "dropout 0.3, sampled",
        "dropout 0.2, normalised": "dropout 0.2, sampled, normalised",
        "dropout 0.3, normalised": "dropout 0.3, sampled, normalised",
        "analytic 0.2": "analytic dropout 0.2",
        "analytic 0.3": "analytic dropout 0.3",
        "analytic 0.2, normalised": "analytic dropout 0.2, normalised",
        "analytic 0.3, normalised": "analytic dropout 0.3, normalised",
    }
    rows = []
    for key, name in names.items():
        of = [networks[f"{key} | {seed}"] for seed in range(3)]
        accuracy, loss, training = (
            statistics.fmean(last(row, k) for row in of) for k in ("accuracy", "loss", "training_loss")
        )
        above = difference("plain", key) if key != "plain" else ""
        rows.append([name, percent(accuracy, 1), above, f"{loss:.3f}", f"{training:.3f}"])
    return table(["", "accuracy", "above plain", "validation loss", "training loss"], rows)


def difference(one: str, other: str, digits: int = 1) -> str:
    """Gain in accuracy of the second network of figure 4 over the first, in percent, ± one standard error."""
    last = example("dropout_training").last

    of = [[read("dropout_training")["networks"][f"{name} | {seed}"] for seed in range(3)] for name in (one, other)]
    gains = [100 * (last(b, "accuracy") - last(a, "accuracy")) for a, b in zip(*of, strict=True)]
    error = statistics.stdev(gains) / math.sqrt(3)
    return f"{statistics.fmean(gains):+.{digits}f} ± {error:.{digits}f}".replace("-", "−")


def ff_stability() -> str:
    networks = read("stability")["networks"]
    names = {
        "sigmoid": "sigmoid",
        "sigmoid, batch norm": "sigmoid, batch norm",
        "Bernoulli, AP2": "Bernoulli units, AP2",
        "Bernoulli, AP2, normalised": "Bernoulli units, AP2, normalised",
        "control: sigmoid, noise drawn": "control: sigmoid, trained on drawn noise",
        "control: sigmoid, asked by AP2": "control: the first sigmoid net, asked by AP2",
    }
    rows = []
    for key, name in names.items():
        row = networks[key]
        values = [row["accuracy"], row["gaussian"][4][0], row["gaussian"][8][0], row["sign"][2][0], row["sign"][4][0]]
        rows.append([name, *(percent(value, 1) for value in values)])
    return table(["", "no noise", "0.4", "0.8", "attack 0.05", "0.1"], rows)


# ------------------------------------------------------- belief networks, missing pixels


def belief_accuracy() -> str:
    rows = []
    for scale, layers in read("belief_network")["accuracy"].items():
        for layer in ("hidden 2", "output"):
            cells = (f"{largest:.1e}, {typical:.1e}" for largest, typical in layers[layer].values())
            rows.append([scale, layer, *cells])
    return table(["scale of weights", "layer", "AP1: largest, r.m.s.", "AP2", "1,000 draws"], rows)


def missing_pixels() -> str:
    rows = []
    for share, ways in read("missing_pixels")["missing"].items():
        for name, row in ways.items():
            cells = [f"{row['KL']:.4f}" if name != "draws" else "", percent(row["error"], 1), f"{row['log loss']:.3f}"]
            rows.append([f"{float(share):.0%}".replace("%", " %"), name, *cells, f"{row['seconds']:.2f}"])
    return table(["missing", "by", "KL from draws", "error", "log loss", "seconds"], rows)


# ------------------------------------------------------------------------------ all


def overview(paper: str) -> str:
    """Every table and figure of a paper."""
    ITEMS = example("papers").ITEMS

    rows = []
    for item in ITEMS:
        if item.paper == paper:
            where = f"`{Path(item.file).name}`" if item.file else "–"
            how = f"`{item.name}`" if item.command else "–"
            rows.append([item.title, item.printed or "–", item.ours or "not done", item.scale, item.seeds, where, how])
    head = ["item", "printed", "here", "scale here, or why not done", "seeds", "file", "`--run`"]
    return table(head, rows)


#: name -> table, each on one page
TABLES: dict[str, Callable[[], str]] = {
    "vbp main": vbp_main,
    "vbp full": vbp_full,
    "vbp mean predictor": vbp_mean_predictor,
    "vbp wide": vbp_wide,
    "vbp thresholds": vbp_thresholds,
    "correlated mnist": correlated_mnist,
    "correlated full": correlated_full,
    "correlated layers": correlated_layers,
    "bow tie main": bow_tie_main,
    "bow tie chains": bow_tie_chains,
    "bow tie mixing": bow_tie_mixing,
    "adf two": adf_two,
    "adf deep pbp": lambda: adf_deep("pbp"),
    "adf deep ebp": lambda: adf_deep("ebp"),
    "adf log-likelihood": adf_log_lik,
    "adf classes": adf_classes,
    "lenet means": lambda: ff_lenet("mu"),
    "lenet sigma": lambda: ff_lenet("sigma"),
    "lenet divergence": ff_kl,
    "lenet statistics": ff_statistics,
    "sigma of outputs": ff_output,
    "nine layers": ff_nine,
    "from scratch": ff_scratch,
    "cost": ff_cost,
    "class posteriors": class_posteriors,
    "dropout": ff_dropout,
    "stability": ff_stability,
    "belief accuracy": belief_accuracy,
    "missing pixels": missing_pixels,
    **{f"overview {k}": functools.partial(overview, k) for k in ("ff", "vbp", "correlated", "adf", "bow-tie")},
    **package_tables.TABLES,
}


def _between(values: Iterable[float], form: str) -> str:
    found = list(values)
    return f"{min(found):{form}} to {max(found):{form}}".replace("-", "−")


def vbp_sentences() -> list[str]:
    ways = {
        file: read(f"vi_vbp_{file}")["ways"]
        for file in ("mlp-400", "mlp-400_warm-up", "mlp-400_60000", "mlp-800", "mlp-1200", "conv", "conv-32")
    }

    def share(kind: str) -> list[float]:
        return [
            100 * row["pruning"]["fixed"]["pruned"]
            for found in ways.values()
            for key, row in found.items()
            if kind in key and "pruning" in row and row["error of mean"] < 0.5
        ]

    own = read(MEAN_PREDICTOR[0])["ways"]["VBP, normal, identity-delta"]["history"]["error"]
    long = read(MEAN_PREDICTOR[1])["ways"]["VBP, normal, identity-delta"]["history"]["error"]
    bbb = ways["mlp-400_60000"]["BBB, normal"]["error of mean"]
    best = own.index(min(own)) + 1
    return [
        f"{_between(share('normal'), '.0f')} % with a normal prior",
        f"{_between(share('uniform') + share('VarOut'), '.1f')} % with the log-uniform one",
        f"falls to {percent(min(own))} after {best} epochs and ends at {percent(own[-1])}",
        f"Bayes by Backprop ends at {percent(bbb)}",
        f"100 epochs end at {percent(long[-1])}, after {percent(min(long))}",
    ]


def bow_tie_sentences() -> list[str]:
    hat = [[statistics.median(_uci(f"r_hat_predictions{w}", name)) for name in BOW_TIE] for w in ("", "_worst")]
    return [
        f"R̂ of the median test prediction is {_between(hat[0], '.2f')}, and of the worst one {_between(hat[1], '.1f')}",
    ]


def correlated_sentences() -> list[str]:
    rho = [v[2] for key in ("100", "250") for v in _correlated("mnist")[f"correlated, {key}"]["layers"].values()]
    second = _correlated("cifar")
    at = [100 * _correlated("mnist")[f"{kind}, 100"]["history"]["error"][14] for kind in ("plain", "correlated")]
    return [
        f"After 7,500 steps the plain network with 100 units erred on {at[0]:.2f} %, "
        f"the correlated one on {at[1]:.2f} %",
        f"{_between(rho, '.2f')}; the paper prints −0.44 to −0.15",
        f"errs on {percent(second['plain']['error'])}, and the one with correlated parameters on "
        f"{percent(second['correlated']['error'])}",
        f"{_between((v[2] for v in second['correlated']['layers'].values()), '.2f')}, not yet the −0.49 to −0.29",
    ]


def adf_sentences() -> list[str]:
    found = read("adf_classes")
    variance = found["variance"]["100"]
    ones = [variance[f"{n} samples"]["variance_of_one_datum"] for n in (1, 10, 100)]
    texts = [found["binary"][f"docstrings of SciPy or scikit-learn | {way}"] for way in ("pbp", "ebp")]
    time = read("adf_time")["microseconds"]["regression, 8-50-50-1"]["filter, pbp, float64"]
    return [
        "it is " + ", ".join(f"{value:.2g}" for value in ones[:-1]) + f" and {ones[-1]:.2g} with 1, 10 and 100 samples",
        *(
            f"{100 * row['error']:.1f} ± {100 * row['error_se']:.1f} % ({name})"
            for row, name in zip(texts, ("PBP", "EBP"), strict=True)
        ),
        f"An update of 50 × 50 units took {time:.0f} µs",
    ]


def ff_sentences() -> list[str]:
    both = "analytic 0.3, normalised"
    rows = read("lenet_mnist")["table2"]
    worse = [k.replace(" |", ",") for k, r in rows.items() if r["kl_exact_simplified"] >= r["kl_ap1"]]
    noisy = rows["LReLU, noise 0.1 | normalised"]["eps_mu_exact"]
    best, *others = sorted(max(rows[key]["eps_mu_exact"]) for key in rows if "normalised" in key)
    return [
        f"At 0.3 it ends {difference('dropout 0.3', 'analytic 0.3', 2)} above sampled dropout".replace("+", ""),
        f"at 0.2 the two end alike ({difference('dropout 0.2', 'analytic 0.2')})",
        f"ends {difference('dropout 0.3, normalised', both)} from normalised sampled dropout at 0.3, and "
        f"{difference('dropout 0.2, normalised', 'analytic 0.2, normalised')} at 0.2",
        f"the simplified softmax by AP2 is no better than AP1 in {len(worse)} of {len(rows)} rows: {'; '.join(worse)}",
        f"means are off by at most {max(noisy):.2f} σ in the normalised net",
        f"ranges from {best:.2f} σ to {others[-1]:.2f} σ",
    ]


def belief_sentences() -> list[str]:
    digits = read("belief_network")["digits"]["test error"]
    half = read("belief_network")["accuracy"]["0.5"]["output"]
    return [
        f"AP2 is off by {half['AP2'][1]:.0e} and AP1 by {half['AP1'][1]:.1e}".replace("e-0", "e-"),
        f"errs on {percent(digits['AP2'])} by AP2, {percent(digits['one draw'])} by one draw, "
        f"{percent(digits['mean of 100 draws'])} by 100 draws and {percent(digits['AP1'])} by AP1",
    ]


#: page -> computed parts of its sentences
SENTENCES: dict[str, Callable[[], list[str]]] = {
    "variance-back-propagation": vbp_sentences,
    "bow-tie-networks": bow_tie_sentences,
    "correlated-parameters": correlated_sentences,
    "assumed-density-filtering": adf_sentences,
    "feedforward-uncertainty-propagation": ff_sentences,
    "belief-networks": belief_sentences,
    **package_tables.SENTENCES,
}

_PLACE = re.compile(r"(<!-- table: (?P<name>[^>]*) -->\n\n).*?(\n\n<!-- end of table -->)", re.DOTALL)


def written(page: str) -> str:
    """A page with its tables computed anew.

    Raises:
        KeyError: for a table that is not in :data:`TABLES`.
    """
    return _PLACE.sub(lambda place: place[1] + TABLES[place["name"]]() + place[3], page)


_FIGURE = re.compile(r"(?<![\w.,-])−?(\d+\.(\d+))(?: %)?(?![\w])")


def unfounded(name: str) -> list[str]:
    """Figures with a decimal point in a page's prose that no file which it cites has, and no computed sentence."""
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    cited = set(re.findall(r"`(?:[\w/]*/)?([\w-]+\.json)`", page))
    files = [path for folder in ("examples", "benchmarks") for path in (ROOT / folder / "results").glob("*.json")]
    known = {value for path in files if path.name in cited for value in _numbers(json.loads(path.read_text()))}
    prose = re.sub(r"^\|.*?$|^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    for sentence in SENTENCES.get(name, list)():
        prose = prose.replace(sentence, "")
    return [
        found[0]
        for found in _FIGURE.finditer(prose)
        if found[1] not in {f"{abs(value) * scale:.{len(found[2])}f}" for value in known for scale in (1, 100)}
    ]


def _numbers(value: Any) -> Iterable[float]:
    """Every number of a result, also in keys and words."""
    if isinstance(value, dict | list):
        for inside in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _numbers(inside)
    elif isinstance(value, str):
        yield from map(float, re.findall(r"\d+\.\d+", value))
    elif isinstance(value, int | float):
        yield value


if __name__ == "__main__":
    for path in sorted([*PAGES.glob("*.md"), *PAGES.parent.glob("*.md")]):
        text = path.read_text(encoding="utf-8")
        if (new := written(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")

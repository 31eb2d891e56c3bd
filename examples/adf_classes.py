"""Classification by density filtering: log Z by sampling against the log bound, and two classes by probit.

Three tables after the paper's supplement:

    classes    scikit-learn's digits, MNIST, and HAR and Sensorless Drive where DIR has them (see _classes.py), PBP and
               EBP, the sampled log Z (100 samples and 1) against the bound: test error, log probability of the test
               labels, seconds (figure 2)
    variance   how far the sampled log-likelihood of synthetic training data scatters when the samples are drawn anew,
               for 1, 10 and 100 samples and 10 and 100 classes (figure 3); a network of two hidden layers of 400
    binary     two classes by probit (table 2; figure 1, right): tabular sets of scikit-learn, 20 random splits as one
               batch, and bags of words, 5 splits: docstrings, and the folders DIR/text/NAME/CLASS/*

The paper trains two hidden layers of 400 for 100 epochs; here MNIST has that network and a few passes, digits two
layers of 50 and 40 passes.  Its text sets (20 newsgroups, spam, Reuters) are not at hand; docstrings of two libraries,
which are installed wherever this runs, have as many texts, and words of the same order.

    python examples/adf_classes.py --data DIR                      # DIR holds mnist.npz

Results are written after every case; a run that was interrupted goes on where it stopped (--fresh starts anew).
Source: Ghosh, Delle Fave & Yedidia 2016, Assumed Density Filtering Methods for Learning Bayesian Neural Networks,
supplement, sections 3 and 4.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from _classes import TABULAR, TrainTest, multiclass, random_splits, tabular, text, text_sets, versions
from _common import Results, wide_console
from rich.console import Console
from rich.table import Table
from sklearn.datasets import make_blobs
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from momentgen.inference.adf import DensityFilter
from momentgen.inference.likelihood import Categorical, Probit

#: how log Z is had -> likelihood, samples
LIKELIHOODS = {
    "100 samples": (Categorical(), 100), "1 sample": (Categorical(), 1), "log bound": (Categorical("bound"), 1),
}  # fmt: skip
RULES = ("pbp", "ebp")


def class_posterior(net: DensityFilter, x: Tensor, samples: int = 100) -> Tensor:
    """Equation (6): the mean of softmax over samples of the outputs, shape (n, classes)."""
    mean, var = (part[0].double() for part in net.output(x[None]))
    draws = torch.randn(samples, mean.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = [m[:, None] + v[:, None].sqrt() * draws for m, v in zip(mean.split(1000), var.split(1000), strict=True)]
    return torch.cat([part.softmax(2).mean(1) for part in parts])


def classify(
    data: TrainTest, hidden: int, rule: str, likelihood: str, passes: int, console: Console
) -> dict[str, object]:
    """Test error and log probability, and the mean log Z of each pass."""
    x_train, y_train, x_test, y_test = data.x_train, data.y_train, data.x_test, data.y_test
    classes = int(y_train.max()) + 1
    sizes = (x_train.shape[1], hidden, hidden, classes)
    model, samples = LIKELIHOODS[likelihood]
    net = DensityFilter(sizes, model, rule=rule, samples=samples, learn_prior=False, spread=1.0, dtype=x_train.dtype)
    started = time.perf_counter()
    log_z = net.fit(x_train[None], y_train[None], passes, progress=console.is_terminal)
    seconds = time.perf_counter() - started
    found = class_posterior(net, x_test)
    return {
        "error": (found.argmax(1) != y_test).double().mean().item(),
        "log_prob": found.gather(1, y_test[:, None]).log().mean().item(),
        "log_z_a_pass": log_z[0].tolist(),
        "seconds": seconds,
        "seconds_a_pass": seconds / passes,
        "skipped_weights": int(net.skipped[0, 0]),
    }


def variance(classes: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Scatter of the mean sampled log Z of the training data over fresh samples, by their number."""
    x, y = make_blobs(1000, n_features=20, centers=classes, cluster_std=4.0, random_state=0)
    features, labels = torch.tensor(StandardScaler().fit_transform(x)), torch.tensor(y)
    net = DensityFilter((20, 400, 400, classes), Categorical(), learn_prior=False, spread=1.0)
    net.fit(features[None], labels[None], arguments.passes_synthetic)
    mean, var = (part[0] for part in net.output(features[None]))
    generator, row = torch.Generator().manual_seed(0), {}
    for samples in (1, 10, 100):
        found = []
        for _ in range(arguments.repeats):
            draws = torch.randn(len(mean), samples, classes, generator=generator, dtype=mean.dtype)
            logs = (mean[:, None] + var[:, None].sqrt() * draws).log_softmax(2)
            own = logs.gather(2, labels[:, None, None].expand(-1, samples, 1))[..., 0]
            found.append(own.logsumexp(1) - math.log(samples))
        each = torch.stack(found)
        row[f"{samples} samples"] = {
            "mean": each.mean().item(),
            "variance_of_one_datum": each.var(0).mean().item(),
            "variance_of_the_mean": each.mean(1).var().item(),
        }
    return row


def binary(data: TrainTest, rule: str, passes: int) -> dict[str, object]:
    """Test error and log probability over random splits, ± standard error."""
    splits, features = len(data.x_train), data.x_train.shape[2]
    net = DensityFilter(
        (features, 50, 50, 1), Probit(), rule=rule, replicates=splits, learn_prior=False, spread=1.0,
        dtype=data.x_train.dtype,
    )  # fmt: skip
    started = time.perf_counter()
    net.fit(data.x_train, data.y_train, passes)
    seconds = time.perf_counter() - started
    output = net.output(data.x_test)
    log_prob = Probit().log_z(output, data.y_test[..., None]).double().mean(1)
    error = ((output.mean[..., 0] > 0) != (data.y_test == 1)).double().mean(1)
    return {
        "texts or rows": data.x_train.shape[1] + data.x_test.shape[1], "features": features, "splits": splits,
        "error": error.mean().item(), "error_se": (error.std() / splits**0.5).item(),
        "log_prob": log_prob.mean().item(), "log_prob_se": (log_prob.std() / splits**0.5).item(),
        "seconds": seconds, "skipped_weights": int(net.skipped[:, 0].sum()),
    }  # fmt: skip


def show(results: Results, console: Console) -> None:
    table = Table(title="Classes: log Z by sampling, and its bound", title_justify="left")
    for column in ("data", "rule", "log Z", "test error", "log probability", "seconds a pass"):
        table.add_column(column, justify="left" if column in ("data", "rule", "log Z") else "right")
    for key, row in results["classes"].items():
        numbers = f"{100 * row['error']:.2f} %", f"{row['log_prob']:.4f}", f"{row['seconds_a_pass']:.1f}"
        table.add_row(*key.split(" | "), *numbers)
    console.print(table)
    table = Table(title="Variance of the sampled training log-likelihood", title_justify="left")
    for column in ("classes", "samples", "mean", "variance, one datum", "variance, mean of 1000 data"):
        table.add_column(column, justify="right")
    for classes, rows in results["variance"].items():
        for samples, row in rows.items():
            one, all_of_them = row["variance_of_one_datum"], row["variance_of_the_mean"]
            table.add_row(classes, samples.split()[0], f"{row['mean']:.4f}", f"{one:.2e}", f"{all_of_them:.2e}")
    console.print(table)
    table = Table(title="Two classes by probit", title_justify="left")
    for column in ("data", "rule", "N", "d", "splits", "test error", "log probability", "seconds"):
        table.add_column(column, justify="left" if column in ("data", "rule") else "right")
    for key, row in results["binary"].items():
        error = f"{100 * row['error']:.2f} ± {100 * row['error_se']:.2f} %"
        table.add_row(
            *key.split(" | "),
            *(str(row[name]) for name in ("texts or rows", "features", "splits")),
            error,
            f"{row['log_prob']:.3f} ± {row['log_prob_se']:.3f}",
            f"{row['seconds']:.0f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--train", type=int, default=60_000, help="training images to use")
    parser.add_argument("--passes", type=int, default=40, help="over the small sets")
    parser.add_argument("--passes-mnist", type=int, default=5)
    parser.add_argument("--passes-synthetic", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=50, help="draws of the samples, for their variance")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run's results")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "adf_classes.json")
    arguments = parser.parse_args()
    console = wide_console()
    wanted = ("train", "passes", "passes_mnist", "passes_synthetic", "repeats")
    results = Results(
        arguments.out, {name: getattr(arguments, name) for name in wanted} | versions(),
        ("classes", "variance", "binary"),
        arguments.fresh, console,
    )  # fmt: skip

    def missing(section: str, key: str) -> bool:
        return key not in results[section] and (arguments.only or "") in f"{section} {key}"

    for name in (*TABULAR, *text_sets(arguments.data)):
        two: TrainTest | None = None
        for rule in RULES:
            if missing("binary", key := f"{name} | {rule}"):
                if two is None:
                    two = random_splits(*tabular(name), 20) if name in TABULAR else text(name, arguments.data, 5)
                results.keep("binary", key, binary(two, rule, arguments.passes))
    for classes in (10, 100):
        if missing("variance", str(classes)):
            results.keep("variance", str(classes), variance(classes, arguments))
    for name in ("digits", "MNIST", "HAR", "Sensorless"):
        wanted_here = [
            (likelihood, rule) for likelihood in LIKELIHOODS for rule in RULES
            if missing("classes", f"{name} | {rule} | {likelihood}")
        ]  # fmt: skip
        loaded = multiclass(name, arguments.data, arguments.train, console) if wanted_here else None
        if wanted_here and loaded is None:
            console.print(f"{name} is left out: {arguments.data} has no files of it")
        for likelihood, rule in wanted_here if loaded else ():
            hidden = 50 if name == "digits" else 400
            passes = arguments.passes_mnist if name == "MNIST" else arguments.passes
            row = classify(loaded, hidden, rule, likelihood, passes, console)
            results.keep("classes", f"{name} | {rule} | {likelihood}", row)
    show(results, console)
    results.say_where()


if __name__ == "__main__":
    main()

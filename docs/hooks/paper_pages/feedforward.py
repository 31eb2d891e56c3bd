"""Tables and sentences of docs/results/feedforward-uncertainty-propagation.md and belief-networks.md."""

from __future__ import annotations

import itertools
import math
import statistics

from paper_pages import between, example, exists, listed, percent, read, standard_error, table

__all__ = ["SENTENCES", "TABLES"]


def class_posteriors() -> str:
    """The largest error of a probability by each approximation."""
    results = read("softmax", "benchmarks")
    variants = list(results["extremes"])
    rows = [
        [str(row["classes"]), f"{row['sigma']:g}", *(f"{row[variant]['max_error']:.2g}" for variant in variants)]
        for row in results["table"]
    ]
    return table(["classes", "σ of the logits", *variants], rows)


def per_layer(kind: str) -> str:
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


def kl() -> str:
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


def output() -> str:
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


def statistics_of_data() -> str:
    TABLE4 = example("lenet_mnist").TABLE4

    found, rows = read("lenet_mnist")["table4"], []
    for (kind, how), printed in TABLE4.items():
        for key, values in zip(("mu", "sigma"), printed, strict=True):
            label = f"{kind}, {how}, ε of {'means' if key == 'mu' else 'σ'}"
            rows.append([f"{label}: the paper", *(f"{value:.2f}" for value in values)])
            rows.append(["here", *(f"{value:.2f}" for value in found[f"{kind} | {how}"][key])])
    return table(["activation, initialisation", "C1", "A1", "C2", "A2", "C3", "A3", "F"], rows)


def nine() -> str:
    """ε_σ at seven of the eighteen places of table 3."""
    cases, columns = (getattr(example("nine_layer"), name) for name in ("CASES", "COLUMNS"))
    places = ("A1", "C2", "C3", "C5", "C7", "C9", "P")
    rows, of_width = [], {"": read("nine_layer")["table3"]}
    if exists(FULL_WIDTH):
        of_width["full width, "] = read(FULL_WIDTH)["table3"]
    for case, (_, _, paper) in cases.items():
        kinds = {"the paper, fitted, trained": paper["eps_sigma_ap2"]}
        for (width, found), state, key in itertools.product(
            of_width.items(), ("untrained", "trained"), ("fitted", "exact")
        ):
            if row := found.get(f"{case} | {state}"):
                kinds[f"{width}{state}, {key}"] = row[f"eps_sigma_{key}"]
        for kind, values in kinds.items():
            picked = [values[columns.index(place)] for place in places]
            cells = ["–" if value is None else f"{value:.2f}" for value in picked]
            rows.append([f"{case}: {kind}" if "paper" in kind else kind, *cells])
    return table(["", *places], rows)


FULL_WIDTH = "nine_layer_full"


def full_width() -> str:
    """How far the network of full width has been run."""
    if not exists(FULL_WIDTH):
        return "At full width it has not been run; `examples/papers.py --run nine-layer-full` does it."
    found = read(FULL_WIDTH)
    trained = {case.split(" | ")[0]: row for case, row in found["table3"].items() if case.endswith("| trained")}
    accuracies = ", ".join(f"{row['accuracy']:.1%}".replace("%", " %") for row in trained.values())
    return (
        f"Rows of full width are of `{FULL_WIDTH}.json`, after one pass over {found['settings']['train']:,} images.\n"
        f"These networks give {accuracies} right answers ({'; '.join(trained)})."
    )


def scratch() -> str:
    rows = []
    for name, row in read("from_scratch")["networks"].items():
        losses = f"{row['loss_first']:.3f} → {row['loss_last']:.3f}"
        rows.append([name, f"{row['least_variance']:.1e}", losses, percent(row["accuracy_ap2"], 1)])
    return table(["", "least variance of an output", "loss, first and last 5 %", "test accuracy, AP2"], rows)


def cost() -> str:
    rows = []
    for key, name in (("mlp", "MLP 784-1024-1024-10"), ("lenet", "LeNet")):
        for threads in ("1_thread", "2_threads"):
            found = read(f"networks_{threads}", "benchmarks")["results"]
            over = {row["propagation"]: row["over_plain"] for row in found if row["network"] == key}
            ways = [over[f"ap2{more}"] for more in ("", ", varying noise", ", normalised")]
            cells = [f"{way:.2f}" for way in (*ways, ways[2] - ways[0])]
            rows.append([name, threads[0], *cells])
    rows.append(["the paper's implementation", "", "3", "", "6", "3"])
    return table(
        ["", "threads", "one variance for all pixels", "one for each", "with normalisation", "which adds"], rows
    )


def dropout() -> str:
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
    error = standard_error(gains)
    return f"{statistics.fmean(gains):+.{digits}f} ± {error:.{digits}f}".replace("-", "−")


def stability() -> str:
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


ACCURACIES = {
    "leaky ReLU": "LReLU, noise 0.1",
    "with dropout": "LReLU, dropout 0.2",
    "logistic Bernoulli": "Logistic Bernoulli",
    "logistic transform": "Logistic transform, noise 0.1",
}


def sentences() -> list[str]:
    both = "analytic 0.3, normalised"
    rows = read("lenet_mnist")["table2"]
    worse = [k.replace(" |", ",") for k, r in rows.items() if r["kl_exact_simplified"] >= r["kl_ap1"]]
    noisy = rows["LReLU, noise 0.1 | normalised"]["eps_mu_exact"]
    first = [100 * (rows[f"LReLU, noise 0.1 | {net}"]["eps_sigma_fitted"][0] - 1) for net in ("plain", "normalised")]
    transform = rows["Logistic transform, noise 0.1 | normalised"]["eps_sigma_exact"]
    accuracy = {key: f"{100 * row['accuracy']:.1f}" for key, row in rows.items()}
    off = max(abs(row["eps_sigma_exact"][0] - 1) for row in rows.values())
    nine, odds = read("nine_layer")["table3"], read("stability")["networks"]
    held = [abs(value - 1) for key, row in nine.items() if "| un" in key for value in row["eps_sigma_exact"] if value]
    fitted = [
        max(abs(value - 1) for value in nine[f"LReLU, {case} | untrained"]["eps_sigma_fitted"] if value)
        for case in ("noise 0.01", "dropout 0.2")
    ]
    wrong = [odds[key]["gaussian"][8][1] for key in ("sigmoid, batch norm", "Bernoulli, AP2")]
    right = [f"{100 * row['accuracy']:.0f}" for key, row in nine.items() if key.endswith("| trained")]
    best, *others = sorted(max(rows[key]["eps_mu_exact"]) for key in rows if "normalised" in key)
    return [
        f"whose floor of ε_μ is {(2 / math.pi / read('lenet_mnist')['settings']['samples']) ** 0.5:.3f}",
        "are "
        + "{} ({}), {} ({}), {} ({}) and {} ({})".format(
            *(
                cell
                for name, case in ACCURACIES.items()
                for cell in (f"{accuracy[f'{case} | plain']}, {accuracy[f'{case} | normalised']} %", name)
            )
        ),
        f"is within {percent(off, 1)} of Monte Carlo in all cases",
        f"σ too large by {between(first, '.0f')} % at the first activation",
        f"{transform[-1]:.3f} of σ is left at F, for 0.90 printed",
        f"makes the true variance {transform[1] ** -2:.1f} times that of independent units",
        f"which give {listed(right)} % right answers in the order of the table",
        f"keep σ within {percent(max(held), 1)} through all eighteen places",
        f"σ is off by up to {percent(fitted[0], 0)} (noise) and {percent(fitted[1], 0)} (dropout)",
        f"odds of wrong answers: {float(f'{wrong[0]:.3g}'):,.0f} at noise 0.8, "
        f"where Bernoulli units have {wrong[1]:.0f}",
        "standard deviation {4:g} and {8:g}".format(*example("stability").GAUSSIAN),
        "attack of size {2:g} and {4:g}".format(*example("stability").SIGN),
        f"At 0.3 it ends {difference('dropout 0.3', 'analytic 0.3', 2)} above sampled dropout".replace("+", ""),
        f"at 0.2 the two end alike ({difference('dropout 0.2', 'analytic 0.2')})",
        f"ends {difference('dropout 0.3, normalised', both)} from normalised sampled dropout at 0.3, and "
        f"{difference('dropout 0.2, normalised', 'analytic 0.2, normalised')} at 0.2",
        f"the simplified softmax by AP2 is no better than AP1 in {len(worse)} of {len(rows)} rows: {'; '.join(worse)}",
        f"means are off by at most {max(noisy):.2f} σ in the normalised net",
        f"ranges from {best:.2f} σ to {others[-1]:.2f} σ",
    ]


def pea_variance() -> str:
    rows = []
    for sigma, row in read("logistic_approximations")["variance"].items():
        cells = [f"{100 * row['PEA at 0']:+.1f} %".replace("-", "−")]
        rows.append([f"{float(sigma):g}", *cells, *(percent(row[key], 1) for key in ("PEA", "(33)", "float32 fails"))])
    return table(["σ of X", "PEA, at mean 0", "PEA, at most", "(33), at most", "float32 fails"], rows)


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


def belief_sentences() -> list[str]:
    digits = read("belief_network")["digits"]["test error"]
    half = read("belief_network")["accuracy"]["0.5"]["output"]
    return [
        f"AP2 is off by {half['AP2'][1]:.0e} and AP1 by {half['AP1'][1]:.1e}".replace("e-0", "e-"),
        f"errs on {percent(digits['AP2'])} by AP2, {percent(digits['one draw'])} by one draw, "
        f"{percent(digits['mean of 100 draws'])} by 100 draws and {percent(digits['AP1'])} by AP1",
    ]


def logistic_sentences() -> list[str]:
    largest = read("logistic_approximations")["largest"]
    ways = ("AP2a", "AP2b", "PEA")
    more = max(largest[inputs][way] for inputs in largest if inputs != "1" for way in ways)
    return [
        f"{between((row['AP1'] for row in largest.values()), '.2f')} bits at the mean alone",
        f"reach at most {more:.3f} bits; the mean over trials of 50 samples is at most "
        f"{max(row['50 samples'] for row in largest.values()):.3f}",
        f"With one input they reach {max(largest['1'][way] for way in ways):.3f}",
    ]


TABLES = {
    "lenet means": lambda: per_layer("mu"),
    "lenet sigma": lambda: per_layer("sigma"),
    "lenet divergence": kl,
    "lenet statistics": statistics_of_data,
    "sigma of outputs": output,
    "nine layers": nine,
    "nine layers at full width": full_width,
    "from scratch": scratch,
    "cost": cost,
    "class posteriors": class_posteriors,
    "dropout": dropout,
    "stability": stability,
    "pea variance": pea_variance,
    "belief accuracy": belief_accuracy,
    "missing pixels": missing_pixels,
}
SENTENCES = {
    "feedforward-uncertainty-propagation": sentences,
    "belief-networks": belief_sentences,
    "papers": logistic_sentences,
}

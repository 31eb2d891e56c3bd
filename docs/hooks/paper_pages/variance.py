"""Tables and sentences of docs/results/variance-back-propagation.md."""

from __future__ import annotations

from typing import Any

from paper_pages import between, exists, percent, read, signed, table

__all__ = ["SENTENCES", "TABLES"]


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


def main() -> str:
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


def full() -> str:
    ways = read("vi_vbp_mlp-400_60000")["ways"]
    rows = []
    for key, name in VBP.items():
        if key in ways:
            best = percent(min(ways[key]["history"]["error"]))
            rows.append([name, _mean_error(ways, key), best, percent(ways[key].get("error")), _pruned(ways, key)])
    return table(["60,000 images, 25 epochs", "error", "best on the way", "predicted", "pruned, error then"], rows)


#: files of the paper's own data term: 25 epochs, and the paper's length
SHORT, LONG = "vi_vbp_mlp-400_mean-predictor", [f"vi_vbp_mlp-400_100-epochs_seed-{seed}" for seed in range(3)]
OWN = "VBP, normal, identity-delta"


def mean_predictor() -> str:
    rows = []
    for file in (SHORT, *filter(exists, LONG)):
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


def verdict() -> str:
    """What the seeds that ran at the paper's length say."""
    errors = [read(file)["ways"][OWN]["history"]["error"] for file in LONG if exists(file)]
    ends, best = ([100 * pick(values) for values in errors] for pick in (lambda values: values[-1], min))
    other = 100 * read("vi_vbp_mlp-400_60000")["ways"]["BBB, normal"]["error of mean"]
    above = sum(end > other for end in ends)
    lines = [
        f"The files are `{SHORT}.json` and `{LONG[0][:-1]}*.json`.",
        f"The paper's length is 100 epochs, which {len(ends)} of {len(LONG)} seeds had.",
        f"The error ends at {between(ends, '.2f')} %, after {between(best, '.2f')} % at best.",
    ]
    if above == len(ends):
        lines += [f"Each ends above the {other:.2f} % of Bayes by Backprop after 25 epochs."]
        lines += [
            "So neither our bound nor our exact moments cause the rise.",
            "It is the method's, as far as these seeds show.",
        ]
    else:
        lines += [f"Only {above} of {len(ends)} end above the {other:.2f} % of Bayes by Backprop after 25 epochs."]
        lines += ["So the seed decides whether the error rises."]
    return "\n".join(lines)


def wide() -> str:
    names = ("mlp-800", "mlp-1200", "conv-32")
    files = [read(f"vi_vbp_{name}")["ways"] for name in names]
    keys = [key for key in VBP if any(key in ways for ways in files)]
    rows = [
        [VBP[key], *(cell for ways in files for cell in (_mean_error(ways, key), _pruned(ways, key)))] for key in keys
    ]
    head = [cell for name in ("2 × 800", "2 × 1200", "32 × 32") for cell in (name, "pruned, error then")]
    return table(["", *head], rows)


def thresholds() -> str:
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


NETWORKS = ("mlp", "lenet", "lenet, max pools", "lenet, average pools")


def sentences() -> list[str]:
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

    own = read(SHORT)["ways"][OWN]["history"]["error"]
    bbb = ways["mlp-400_60000"]["BBB, normal"]["error of mean"]
    best = own.index(min(own)) + 1
    warmed, steps = ways["mlp-400"], read("vi_steps", "benchmarks")
    over = {
        network: {way: f"{row['over plain']:.1f}" for way, row in of.items()}
        for network, of in steps.items()
        if network in NETWORKS
    }
    mlp = over["mlp"]
    return [
        f"all weights are pruned: {percent(warmed['VBP, log-uniform, exact']['error of mean'])} is chance",
        f"cost {mlp['VBP, normal']} plain steps by VBP with a normal prior, and {mlp['VBP, log-uniform']} with",
        f"By Bayes by Backprop it cost {mlp['sample, normal']}, and a step of LeNet with correlated parameters "
        f"{over['lenet']['correlated']}",
        f"A step of LeNet cost {over['lenet, max pools']['VBP, normal']} plain steps by VBP with max pools, and "
        f"{over['lenet, average pools']['VBP, normal']} with average pools",
        f"a VBP step costs {mlp['VBP, normal, compiled']} plain ones, also compiled",
        f"{between(share('normal'), '.0f')} % with a normal prior",
        f"{between(share('uniform') + share('VarOut'), '.1f')} % with the log-uniform one",
        f"falls to {percent(min(own))} after {best} epochs and ends at {percent(own[-1])}",
        f"Bayes by Backprop ends at {percent(bbb)}",
    ]


TABLES = {
    "vbp main": main,
    "vbp full": full,
    "vbp mean predictor": mean_predictor,
    "vbp verdict": verdict,
    "vbp wide": wide,
    "vbp thresholds": thresholds,
}
SENTENCES = {"variance-back-propagation": sentences}

"""Tables and sentences of docs/results/bow-tie-networks.md."""

from __future__ import annotations

import math
import statistics

from paper_pages import between, exists, listed, plus_minus, read, signed, standard_error, table

__all__ = ["SENTENCES", "TABLES"]

#: the columns of the paper's table 1: RMSE and log-likelihood of BBB, fBNN and bow tie networks
PRINTED = {
    "yacht": ["1.174 ± 0.086", "0.607 ± 0.068", "0.896 ± 0.083", "−2.408 ± 0.007", "−1.033 ± 0.033", "−1.139 ± 0.093"],
    "energy": ["0.565 ± 0.018", "0.412 ± 0.017", "1.096 ± 0.086", "−1.500 ± 0.006", "−0.684 ± 0.020", "−1.334 ± 0.060"],
    "boston": ["–", "–", "–", "–", "−2.301 ± 0.038", "–"],
    "concrete": ["–", "–", "–", "–", "−3.096 ± 0.016", "–"],
    "wine": ["0.643 ± 0.012", "0.673 ± 0.014", "0.651 ± 0.020", "−0.977 ± 0.017", "−1.040 ± 0.013", "−0.992 ± 0.059"],
}
#: of RMSE and log-likelihood: key in the file, columns above, sign of what is better
MEASURES = {"rmse": (0, 1, 2), "log_lik": (3, 4, 5)}
NAMES = ("sigma_y", "log_joint", "predictions", "predictions_worst")
SWEEP = "bow_tie_uci_papers_sweep"


def _uci(key: str, name: str, file: str = "bow_tie_uci") -> list[float]:
    return [row[key] for split, row in read(file)["uci"].items() if split.split(" | ")[0] == name]


def _numbers(cell: str) -> tuple[float, float]:
    """A printed figure and its ±."""
    value, error = cell.replace("−", "-").split(" ± ")
    return float(value), float(error)


def main() -> str:
    rows = []
    for name, printed in PRINTED.items():
        row = [name, str(len(_uci("rmse", name)))]
        for key, (bbb, functional, bow_tie) in MEASURES.items():
            row += [plus_minus(_uci(key, name)), printed[bow_tie], printed[bbb], printed[functional]]
        rows.append(row)
    head = ["bow tie, printed", "BBB, printed", "fBNN, printed"]
    return table(["set", "splits", "RMSE", *head, "log-likelihood", *head], rows)


def verdict() -> str:
    """How the main table lies beside the printed one."""
    lines = []
    for key, (bbb, functional, bow_tie) in MEASURES.items():
        better: dict[str, list[str]] = {"better": [], "alike": [], "worse": []}
        beaten: dict[str, list[str]] = {"BBB": [], "fBNN": []}
        sign = -1 if key == "rmse" else 1
        for name, printed in PRINTED.items():
            values = _uci(key, name)
            mean = statistics.fmean(values)
            if printed[bow_tie] != "–":
                value, error = _numbers(printed[bow_tie])
                off = sign * (mean - value) / math.hypot(standard_error(values), error)
                better["alike" if abs(off) < 2 else "better" if off > 0 else "worse"].append(name)
            for method, column in (("BBB", bbb), ("fBNN", functional)):
                if printed[column] != "–" and sign * (_numbers(printed[column])[0] - mean) > 0:
                    beaten[method].append(name)
        what = {"rmse": "RMSE", "log_lik": "log-likelihood"}[key]
        parts = [f"{word} on {listed(names)}" for word, names in better.items() if names]
        lines.append(f"Beside the bow tie networks printed, our {what} is {listed(parts)}.")
        parts = [f"{method} on {listed(names)}" for method, names in beaten.items() if names]
        lines.append(f"A better {what} than ours is printed for {listed(parts, 'neither BBB nor fBNN')}.")
    spread = [name for name in PRINTED if max(_uci("sigma_y", name)) > 2 * min(_uci("sigma_y", name))]
    lines += ["“Alike” is within two standard errors of the difference."]
    lines += [f"The splits disagree about the noise, by more than a factor of two, on {listed(spread)}:"]
    return "\n".join(lines)


def chains() -> str:
    rows = []
    for name in PRINTED:
        hat = ", ".join(f"{statistics.median(_uci(f'r_hat_{key}', name)):.2f}" for key in NAMES)
        rows.append([name, hat, between(_uci("sigma_y", name), ".2f")])
        rows[-1].append(between((seconds / 2 for seconds in _uci("seconds", name)), ".0f"))
    head = ["set", "R̂ of σ, log joint, predictions (median, worst)", "σ of the noise over the targets'"]
    return table([*head, "seconds per chain of 27,000 sweeps"], rows)


def sweep() -> str:
    """The paper's own sweep on whole sets, as far as it has run."""
    if not exists(SWEEP):
        return (
            "Only the first split of yacht has been run with the paper's own sweep, in the first row of the next table."
        )
    rows = []
    for name, printed in PRINTED.items():
        if values := _uci("rmse", name, SWEEP):
            hat = ", ".join(f"{statistics.median(_uci(f'r_hat_{key}', name, SWEEP)):.2f}" for key in NAMES)
            cells = [plus_minus(values), printed[2], plus_minus(_uci("log_lik", name, SWEEP)), printed[5], hat]
            rows.append([name, str(len(values)), *cells])
    head = ["the paper's sweep", "splits", "RMSE", "printed", "log-likelihood", "printed"]
    return table([*head, "R̂ of σ, log joint, predictions (median, worst)"], rows)


def mixing() -> str:
    rows = []
    for key, row in read("bow_tie_uci")["mixing"].items():
        hat = ", ".join(f"{row[f'r_hat_{name}']:.2f}" for name in NAMES)
        ess = ", ".join(f"{row[f'ess_{name}']:.0f}" for name in NAMES)
        cells = [f"{row['rmse']:.3f}", signed(row["log_lik"], 3), hat, ess, f"{row['seconds']:.0f}"]
        rows.append([key.removeprefix("yacht, "), *cells])
    head = ["yacht, first split", "RMSE", "log-likelihood", "R̂ of σ, log joint, predictions (median, worst)"]
    return table([*head, "ESS of the same", "seconds"], rows)


def mixed() -> str:
    hat = [[statistics.median(_uci(f"r_hat_predictions{w}", name)) for name in PRINTED] for w in ("", "_worst")]
    median, worst = between(hat[0], ".2f"), between(hat[1], ".1f")
    if max(hat[1]) < 1.1:
        return f"The chains mix: R̂ of the worst test prediction is {worst} over the sets."
    return (
        "**The chains do not mix.**\n"
        f"Over the sets R̂ of the median test prediction is {median}, and of the worst one {worst}.\n"
        "So a single chain says little about the posterior's spread; use several and average."
    )


TABLES = {
    "bow tie main": main,
    "bow tie verdict": verdict,
    "bow tie chains": chains,
    "bow tie mixed": mixed,
    "bow tie sweep": sweep,
    "bow tie mixing": mixing,
}


def sentences() -> list[str]:
    (two,) = read("bow_tie_uci_two_layers")["uci"].values()
    return [
        f"RMSE is {two['rmse']:.3f}, log-likelihood {signed(two['log_lik'], 3)}, and R̂ of predictions "
        f"{two['r_hat_predictions']:.2f} in the median and {two['r_hat_predictions_worst']:.2f} at worst",
    ]


SENTENCES = {"bow-tie-networks": sentences}

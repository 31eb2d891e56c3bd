"""Tables and sentences of docs/results/assumed-density-filtering.md."""

from __future__ import annotations

from paper_pages import listed, percent, read, signed, table

__all__ = ["SENTENCES", "TABLES"]


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


def two() -> str:
    rows = [[name, _rmse("pbp", 2, name), p[1], _rmse("ebp", 2, name), p[0]] for name, p in ADF.items()]
    return table(["set", "PBP", "printed", "EBP", "printed"], rows)


def deep(method: str) -> str:
    column = {"ebp": 2, "pbp": 3}[method]
    rows = [
        [name, *(_rmse(method, depth, name) for depth in (4, 5)), f"{_mean(name):.3g}", printed[column]]
        for name, printed in ADF.items()
    ]
    name = method.upper()
    return table(["set", f"{name}, 4 layers", f"{name}, 5 layers", "predicting the mean", "printed, “5 layers”"], rows)


def _mean(name: str) -> float:
    """RMSE of the training targets' mean."""
    return float(read("adf_uci")["sets"][f"mean | {name}"]["rmse"])


def _useless(depth: int) -> list[str]:
    """Sets on which EBP predicts little more than the mean."""
    sets = read("adf_uci")["sets"]
    return [name for name in ADF if sets[f"ebp | {depth} | {name}"]["rmse"] > 0.95 * _mean(name)]


def log_likelihood() -> str:
    columns = [("pbp", 2), ("ebp", 2), ("pbp", 4), ("pbp", 5)]

    def cell(name: str, method: str, layers: int) -> str:
        row = read("adf_uci")["sets"][f"{method} | {layers} | {name}"]
        return f"{signed(row['log_prob'], 3)} ± {row['log_prob_se']:.3f}"

    rows = [[name, *(cell(name, *column) for column in columns)] for name in ADF]
    return table(["set", *(f"{method.upper()}, {layers} layers" for method, layers in columns)], rows)


def classes() -> str:
    found = read("adf_classes")["classes"]
    rows = []
    for how in ("100 samples", "1 sample", "log bound"):
        cells = [found[f"{data} | {way} | {how}"] for data in ("MNIST", "digits") for way in ("pbp", "ebp")]
        rows.append([how, *(f"{percent(row['error'])}, {signed(row['log_prob'], 4)}" for row in cells)])
    return table(["softmax", "MNIST, PBP", "MNIST, EBP", "digits, PBP", "digits, EBP"], rows)


def sentences() -> list[str]:
    found = read("adf_classes")
    variance = found["variance"]["100"]
    ones = [variance[f"{n} samples"]["variance_of_one_datum"] for n in (1, 10, 100)]
    texts = [found["binary"][f"docstrings of SciPy or scikit-learn | {way}"] for way in ("pbp", "ebp")]
    small, large = (
        read("adf_time")["microseconds"][key] for key in ("regression, 8-50-50-1", "classes, 784-400-400-10")
    )
    update = [row["filter, pbp, float64"] for row in (small, large)]
    plain = [[row[f"plain, {data}"] for row in (small, large)] for data in (1, 32)]
    sets = read("adf_uci")["sets"]
    better = [name for name in ADF if sets[f"ebp | 2 | {name}"]["log_prob"] > sets[f"pbp | 2 | {name}"]["log_prob"]]
    protein = sets["ebp | 2 | protein"]["rmse"]
    return [
        "it is " + ", ".join(f"{value:.2g}" for value in ones[:-1]) + f" and {ones[-1]:.2g} with 1, 10 and 100 samples",
        f"bags of words, {texts[0]['texts or rows']:,} docstrings",
        *(
            f"{100 * row['error']:.1f} ± {100 * row['error_se']:.1f} % ({name})"
            for row, name in zip(texts, ("PBP", "EBP"), strict=True)
        ),
        f"With four layers it predicts little more than the mean on {listed(_useless(4))}, with five also on "
        f"{listed([name for name in _useless(5) if name not in _useless(4)])}",
        f"√{protein:.3f} is {protein**0.5:.2f}",
        f"EBP is higher on {len(better)} of {len(ADF)}: {listed(better)}",
        f"An update of 50 × 50 units took {update[0]:.0f} µs, and of 400 × 400 units and ten classes "
        f"{update[1] / 1000:.2f} ms",
        f"took {plain[0][0] / 1000:.2f} and {plain[0][1] / 1000:.2f} ms on a single datum",
        f"On 32 data it took {plain[1][0]:.0f} and {plain[1][1]:.0f} µs per datum",
    ]


TABLES = {
    "adf two": two,
    "adf deep pbp": lambda: deep("pbp"),
    "adf deep ebp": lambda: deep("ebp"),
    "adf log-likelihood": log_likelihood,
    "adf classes": classes,
}
SENTENCES = {"assumed-density-filtering": sentences}

"""Tables and sentences of docs/results/correlated-parameters.md."""

from __future__ import annotations

import math
from typing import Any

from paper_pages import between, example, exists, percent, read, signed, table

__all__ = ["SENTENCES", "TABLES"]

#: file -> looks on the way
STEPS = {"mnist": (10_000, 20_000), "mnist_100000": (10_000, 20_000, 30_000, 50_000, 70_000, 100_000)}
UNITS = (100, 250)
KINDS = ("plain", "correlated", "uncorrelated")
IMAGES = 10_000  # of the test set


def _networks(name: str) -> Any:
    return read(f"vi_correlated_{name}")["networks"]


def _pair(counts: list[int]) -> str:
    return ", ".join(f"{count:,}" for count in counts)


def lenet(name: str) -> str:
    """Tables I and III by the networks of a file, beside the printed ones."""
    printed, counted = (getattr(example("vi_correlated_mnist"), which) for which in ("TABLE1", "TABLE3"))
    networks, rows = _networks(name), []
    for key in (f"{kind}, {units}" for units in UNITS for kind in KINDS):
        if row := networks.get(key):
            history = dict(zip(row["history"]["step"], row["history"]["error"], strict=True))
            said = f" (printed {100 * printed[key]:.2f})" if key in printed else ""
            cells = [*(percent(history.get(step)) for step in STEPS[name]), f"{percent(row['error'])}{said}"]
            for index, kind in enumerate(("right", "wrong")):
                counts = [row["95%"][f"{kind} {how}"] for how in ("certain", "uncertain")] if "95%" in row else []
                theirs = counted.get(key, {}).get("95%", [])[2 * index : 2 * index + 2]
                said = f" (printed {_pair(theirs)})" if theirs else ""
                cells.append(f"{_pair(counts)}{said}" if counts else "–")
            rows.append([key, *cells])
    head = ["kind, units", *(f"{step:,} steps" for step in STEPS[name]), "at the end"]
    return table([*head, "right: certain, uncertain", "wrong: certain, uncertain"], rows)


def verdict() -> str:
    """Whether table I comes out as printed at the paper's length, as far as its networks have been trained."""
    networks, printed = _networks("mnist_100000"), example("vi_correlated_mnist").TABLE1
    lines = []
    for units in UNITS:
        plain, own, control = (networks.get(f"{kind}, {units}") for kind in KINDS)
        theirs = {kind: f"printed {100 * printed[f'{kind}, {units}']:.2f}" for kind in KINDS[:2]}
        if plain and own:
            lines.append(
                f"With {units} units the correlated network errs on {percent(own['error'])} ({theirs['correlated']}), "
                f"the plain one on {percent(plain['error'])} ({theirs['plain']})."
            )
            lines.append(_order(own["error"], plain["error"]))
        elif plain or own:
            kind, row = ("plain", plain) if plain else ("correlated", own)
            lines.append(
                f"With {units} units only the {kind} network has been trained as long; "
                f"it errs on {percent(row['error'])} ({theirs[kind]})."
            )
        else:
            lines.append(f"Networks of {units} units have not been trained as long.")
        if control:
            lines.append(f"With ρ fixed at 0 the network of {units} units errs on {percent(control['error'])}.")
            lines += [f"Learnt ρ change {_gain(own, control)}."] if own else []
    if not any(f"uncorrelated, {units}" in networks for units in UNITS):
        lines.append("The control with ρ fixed at 0 has not been trained as long, so what the correlations do is open.")
    return "\n".join(lines)


def _order(own: float, plain: float) -> str:
    """The order of two errors, and whether the test images settle it, as if the two erred independently."""
    if own == plain:
        return "They err alike."
    word = "That is the paper's order" if own < plain else "That is the reverse of the paper's order"
    error = math.sqrt((own + plain) / IMAGES)
    if abs(own - plain) < 2 * error:
        return (
            f"{word}.\nThe standard error of the difference is {percent(error)}, so the test images do not settle it."
        )
    return f"{word}, by more than two standard errors of the test images."


def _gain(own: Any, control: Any) -> str:
    """What learnt correlations change against the control."""
    wrong = [row["95%"]["wrong certain"] for row in (control, own)]
    return f"this to {percent(own['error'])}, and the wrong predictions taken as certain from {wrong[0]} to {wrong[1]}"


def layers() -> str:
    """Tables II and V."""
    printed = example("vi_correlated_mnist").TABLE2 | example("vi_correlated_cifar").TABLE5
    rows = []
    titles = {"mnist_100000": "full length", "mnist": "30,000 steps", "cifar_40000": "second network, full length"}
    for name, title in (titles | {"cifar": "second network"}).items():
        for key, row in _networks(name).items() if exists(f"vi_correlated_{name}") else ():
            for layer, values in row.get("layers", {}).items():
                theirs = printed.get(key, {}).get(layer)
                cells = [signed(value, 2) for value in values]
                if theirs:
                    cells = [f"{ours} ({signed(other, 2)})" for ours, other in zip(cells, theirs, strict=True)]
                rows.append([f"LeNet, {key}, {title}" if "mnist" in name else title, layer, *cells])
    return table(["network", "layer", "τ (printed)", "τ of biases", "ρ", "ρ of biases"], rows)


def sentences() -> list[str]:
    networks, second = _networks("mnist"), _networks("cifar")
    rho = [v[2] for units in UNITS for v in networks[f"correlated, {units}"]["layers"].values()]
    at = [100 * networks[f"{kind}, 100"]["history"]["error"][14] for kind in ("plain", "correlated")]
    counts = [list(second["correlated"][level].values()) for level in ("95%", "99%")]
    return [
        f"After 7,500 steps the plain network with 100 units erred on {at[0]:.2f} %, "
        f"the correlated one on {at[1]:.2f} %",
        f"{between(rho, '.2f')}; the paper prints −0.44 to −0.15",
        f"all wrong predictions except {networks['correlated, 250']['95%']['wrong certain']} are known",
        f"errs on {percent(second['plain']['error'])}, and the one with correlated parameters on "
        f"{percent(second['correlated']['error'])}",
        "By the 95 % interval {:,} of its right predictions are certain and {} uncertain; "
        "of its wrong ones {} and {}".format(*counts[0]),
        "By the 99 % interval these are {:,} and {}, and {} and {}".format(*counts[1]),
        f"{between((v[2] for v in second['correlated']['layers'].values()), '.2f')}, not yet the −0.49 to −0.29",
    ]


def second() -> str:
    """The second network at the paper's length."""
    if not exists("vi_correlated_cifar_40000"):
        return "It has not been run at the paper's length; `examples/papers.py --run correlated-second-full` does it."
    networks = _networks("cifar_40000")
    said = ", ".join(f"{key} {percent(row['error'])}" for key, row in networks.items())
    return f"At the paper's length the errors are: {said} (`vi_correlated_cifar_40000.json`)."


TABLES = {
    "correlated second": second,
    "correlated mnist": lambda: lenet("mnist"),
    "correlated full": lambda: lenet("mnist_100000"),
    "correlated verdict": verdict,
    "correlated layers": layers,
}
SENTENCES = {"correlated-parameters": sentences}

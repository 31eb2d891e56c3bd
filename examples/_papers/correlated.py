"""Correlated parameters (Posch & Pilz): its tables and figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _papers import Item, Run, percent

SHORT_RUN = Run("correlated-lenet", "vi_correlated_mnist.py --iterations 30000", "vi_correlated_mnist.json", "1")
FULL_RUN = Run(
    "correlated-lenet-full",
    "vi_correlated_mnist.py --kinds plain --kinds correlated --kinds uncorrelated --every 2500 "
    "--out RESULTS/vi_correlated_mnist_100000.json",
    "vi_correlated_mnist_100000.json",
    "1",
)
SECOND_RUN = Run(
    "correlated-second",
    "vi_correlated_cifar.py --plain-iterations 2500 --iterations 2500",
    "vi_correlated_cifar.json",
    "1",
)
SECOND_FULL = Run(
    "correlated-second-full",
    "vi_correlated_cifar.py --every 2500 --out RESULTS/vi_correlated_cifar_40000.json",
    "vi_correlated_cifar_40000.json",
    "1",
)
SHORT = "30,000 steps (paper: 100,000)"


def _length(found: Any) -> str:
    """Steps of a file, and which networks are still missing."""
    wanted = (f"{kind} {units}" for kind in ("plain", "correlated", "uncorrelated") for units in (100, 250))
    left = [key for key in wanted if key.replace(" ", ", ") not in found["networks"]]
    steps = f"{found['settings']['iterations']:,} steps, as the paper"
    return f"{steps}; not yet: {', '.join(left)}" if left else steps


def _steps(found: Any) -> str:
    """Steps of the two networks on 32 × 32 images, and which images."""
    steps = " and ".join(f"{found['settings'][name]:,}" for name in ("plain_iterations", "iterations"))
    mnist = "MNIST" in found["settings"]["data"]
    images = "MNIST with a black edge, CIFAR-10 was not at hand; " if mnist else ""
    return f"{images}{steps} steps (paper: 100,000 and 40,000)"


def _net(*keys: str) -> Callable[[Any], str]:
    """Errors; a dash stands for a network that is not in the file."""

    def ours(found: Any) -> str:
        rows = [found["networks"].get(key) for key in keys]
        return ", ".join(percent(row["error"]) if row else "–" for row in rows) if any(rows) else ""

    return ours


def _counts(key: str, level: str = "95%") -> Callable[[Any], str]:
    return lambda found: ", ".join(f"{value:,}" for value in found["networks"].get(key, {}).get(level, {}).values())


def _rho(*keys: str) -> Callable[[Any], str]:
    """Least and largest τ and ρ of weights, of the networks in the file."""

    def ours(found: Any) -> str:
        networks = [found["networks"][key] for key in keys if key in found["networks"]]
        if not networks:
            return ""
        layers = [values for row in networks for values in row["layers"].values()]
        texts = [f"{min(v[i] for v in layers):.2f} to {max(v[i] for v in layers):.2f}" for i in (0, 2)]
        return f"τ {texts[0]}, ρ {texts[1]}".replace("-", "−")

    return ours


def _lenet(run: Run, scale: Callable[[Any], str] | str, length: str) -> list[Item]:
    """Tables I to III at one length."""
    errors = {"100": "0.84 %, 0.70 %", "250": "0.70 %, 0.61 %"}
    return [
        *(
            Item(
                f"Table I, {units} units{length}: plain, correlated",
                printed,
                _net(f"plain, {units}", f"correlated, {units}"),
                scale,
                run,
            )
            for units, printed in errors.items()
        ),
        Item(
            f"Table II{length}: τ and ρ of weights",
            "τ 0.03 to 2.02, ρ −0.44 to −0.15",
            _rho("correlated, 100", "correlated, 250"),
            scale,
            run,
        ),
        Item(
            f"Table III, 100 units{length}: right certain, uncertain, wrong certain, uncertain",
            "9,668, 262, 14, 56",
            _counts("correlated, 100"),
            scale,
            run,
        ),
        Item(f"Table III, 250 units{length}: the same", "9,587, 352, 8, 53", _counts("correlated, 250"), scale, run),
    ]


def _second(run: Run, length: str) -> list[Item]:
    """Tables IV to VI at one length."""
    return [
        Item(f"Table IV{length}: plain, correlated", "20.9 %, 20.32 %", _net("plain", "correlated"), _steps, run),
        Item(f"Table V{length}: τ and ρ", "τ 0.04 to 0.46, ρ −0.49 to −0.29", _rho("correlated"), _steps, run),
        Item(f"Table VI, 95 %{length}", "5,894, 2,074, 403, 1,629", _counts("correlated"), _steps, run),
        Item(f"Table VI, 99 %{length}", "5,281, 2,687, 250, 1,782", _counts("correlated", "99%"), _steps, run),
    ]


def _figure(title: str, kind: str) -> Item:
    return Item(title, found="drawn", scale=_length, run=FULL_RUN, picture=f"vi_correlated_mnist_100000_{kind}.png")


ITEMS = (
    *_lenet(FULL_RUN, _length, ""),
    *_lenet(SHORT_RUN, SHORT, ", a third of the length"),
    *(
        Item(f"Control, ρ fixed at 0, {units} units: error", "", _net(f"uncorrelated, {units}"), _length, FULL_RUN)
        for units in (100, 250)
    ),
    *_second(SECOND_FULL, ""),
    *_second(SECOND_RUN, ", a few steps"),
    _figure("Figures 1, 2: training", "training"),
    _figure("Figures 3 to 5: boxplots of outputs", "boxes"),
    _figure("Figure 6: certain and wrong images", "wrong"),
    Item(
        "Figures 7, 8: training",
        found="drawn",
        scale=_steps,
        run=SECOND_RUN,
        picture="vi_correlated_cifar_training.png",
    ),
)

"""Two kinds of uncertainty: a network with a second head for the noise, and what it knows of the function.

    python examples/uncertainty_parts.py                  # writes examples/results/uncertainty_parts.png

Targets are a sine whose noise grows from left to right.  The aleatoric σ follows the noise.  The epistemic σ grows
where data are noisy, and beyond their ends.  It does not grow in the gap between 0 and 1.2: independent weights cannot
say that they are uncertain between data and certain on both sides (Foong et al. 2020).  About a minute.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from momentgen.inference import VBPRegressor

OUT = Path(__file__).parent / "results" / "uncertainty_parts.png"


def noise(x: np.ndarray) -> np.ndarray:
    """Standard deviation of the targets' noise."""
    return np.asarray(0.05 + 0.1 * (x + 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--epochs", type=int, default=3000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    x = draw.uniform(-3, 3, 500)
    x = x[(x < 0) | (x > 1.2)]
    y = np.sin(2 * x) + noise(x) * draw.normal(size=len(x))
    model = VBPRegressor(noise="input", epochs=arguments.epochs, calibrate=None, random_state=0).fit(x[:, None], y)
    at = np.linspace(-3.5, 3.5, 300)
    mean, epistemic, aleatoric = model.predict_parts(at[:, None])
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 5.5), height_ratios=(3, 2))
    above.plot(x, y, ".", color="0.6", markersize=3)
    above.plot(at, mean, color="C0")
    total = np.hypot(epistemic, aleatoric)
    above.fill_between(at, mean - 2 * total, mean + 2 * total, color="C0", alpha=0.15, label="with noise, 2σ")
    above.fill_between(at, mean - 2 * epistemic, mean + 2 * epistemic, color="C1", alpha=0.5, label="epistemic, 2σ")
    above.set_ylabel("target")
    above.legend(loc="upper left", frameon=False)
    inside = (at > -3) & (at < 3)
    below.plot(at[inside], noise(at[inside]), "--", color="0.4", label="true noise")
    below.plot(at, aleatoric, color="C0", label="aleatoric σ")
    below.plot(at, epistemic, color="C1", label="epistemic σ")
    below.set(xlabel="feature", ylabel="σ", ylim=(0, None))
    below.legend(loc="upper left", frameon=False)
    figure.tight_layout()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=110)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()

"""What other packages make of the same numbers: the unscented transform, GTC, and bounds by auto_LiRPA.

    python benchmarks/others.py    # pip install filterpy GTC git+https://github.com/Verified-Intelligence/auto_LiRPA

The figures are those of docs/momentgen-and.md, into ``results/others.json``:

    formulas    relative error of σ by filterpy's unscented transform, and its calls, on those of ``_formulas.py``;
                the truth is that of ``results/formulas.json``
    GTC         mean and σ of the Guide's example H.2, from the correlated values that ``gum.py`` takes
    network     an MLP of 64-64-64-10 on scikit-learn's digits, noise of σ 0.1 on every pixel of 16 test images: rms of
                the log of σ over the truth (100,000 draws), passes, and seconds of the processor over one plain pass
    bounds      how wide auto_LiRPA's bounds for the box of ±1.96 σ are, over the true 95 % intervals of the outputs

The unscented transform is Julier's, with κ = 3 − n.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import auto_LiRPA
import GTC
import numpy as np
import torch
from _common import RESULTS, environment, interleaved_medians, save
from _formulas import FORMULAS, Formula
from filterpy.kalman import JulierSigmaPoints, unscented_transform
from sklearn.datasets import load_digits
from torch import Tensor, nn

import momentgen

STD, IMAGES, DRAWS = 0.1, 16, 100_000


def transform(function: Callable[[Tensor], Tensor], mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, int]:
    """σ of what a function makes of rows of inputs, by the unscented transform, and the calls."""
    points = JulierSigmaPoints(len(mean), kappa=3.0 - len(mean))
    at = points.sigma_points(mean, cov)
    _, found = unscented_transform(function(torch.from_numpy(at)).double().numpy(), points.Wm, points.Wc)
    return np.sqrt(found.diagonal()), len(at)


def of_formula(formula: Formula, std: float) -> dict[str, float]:
    given = formula.inputs.values()
    var = [one.std**2 if one.law is None else float(one.law.variance) for one in given]
    mean = np.array([one.mean for one in given])
    found, calls = transform(lambda x: formula.function(*x.T)[:, None], mean, np.diag(var))
    return {"error": float(found[0] / std - 1), "calls": calls}


def of_gtc() -> dict[str, tuple[float, float]]:
    """Means and σ of H.2, by linear propagation with correlations."""
    V, I, phi = GTC.multiple_ureal([4.9990, 19.661e-3, 1.04446], [0.0032, 9.5e-6, 0.00075], 5)  # noqa: E741
    for one, other, r in ((V, I, -0.36), (V, phi, 0.86), (I, phi, -0.65)):
        GTC.set_correlation(r, one, other)
    found = {"resistance": V / I * GTC.cos(phi), "reactance": V / I * GTC.sin(phi), "impedance": V / I}
    return {name: (GTC.value(one), GTC.uncertainty(one)) for name, one in found.items()}


def trained() -> tuple[nn.Sequential, Tensor]:
    """A network and test images."""
    torch.manual_seed(0)
    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    x = x.float() / 16
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(60):
        for rows in torch.randperm(1500).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net.eval().requires_grad_(False), x[1500 : 1500 + IMAGES]


def unscented(net: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    found = [transform(lambda x: net(x.float()), image, np.eye(64) * STD**2) for image in x.double().numpy()]
    return torch.from_numpy(np.stack([std for std, _ in found])), found[0][1]


def ours(net: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    out = momentgen.convert(net)(momentgen.noisy(x, std=STD))
    return out.std.double(), int(out.rows)


def linear(net: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    slopes = torch.func.vmap(torch.func.jacrev(net))(x)
    return slopes.double().square().sum(-1).sqrt() * STD, 1 + slopes.shape[1]


def sampled(net: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    noise = torch.randn((129, *x.shape), generator=torch.Generator().manual_seed(1)) * STD
    return net(x + noise).double().std(0), 129


def of_network() -> tuple[dict[str, Any], dict[str, float]]:
    """Rows of methods, and of bounds."""
    net, x = trained()
    generator = torch.Generator().manual_seed(2)
    draws = torch.stack([net(x + torch.randn(x.shape, generator=generator) * STD) for _ in range(DRAWS)])
    truth = draws.double().std(0)
    methods = {"unscented": unscented, "momentgen": ours, "linear": linear, "129 draws": sampled}
    run = {"plain": lambda: net(x)} | {name: functools.partial(method, net, x) for name, method in methods.items()}
    seconds, rows = interleaved_medians(run, rounds=15, clock=time.process_time), {}
    for name, method in methods.items():
        std, passes = method(net, x)
        rms = float((std / truth).log().square().mean().sqrt())
        rows[name] = {"rms": rms, "passes": passes, "cost": seconds[name] / seconds["plain"]}
    lower, upper = draws[:: DRAWS // 10_000].quantile(torch.tensor([0.025, 0.975]), dim=0)
    box = auto_LiRPA.PerturbationLpNorm(norm=float("inf"), eps=1.96 * STD)
    bounded, wide = auto_LiRPA.BoundedModule(net, x), {}
    for name in ("IBP", "CROWN"):
        low, high = bounded.compute_bounds(x=(auto_LiRPA.BoundedTensor(x, box),), method=name)
        wide[name] = float(((high - low).detach() / (upper - lower)).median())
    return rows, wide


def main() -> None:
    torch.set_num_threads(1)
    known = json.loads((RESULTS / "formulas.json").read_text(encoding="utf-8"))["rows"]
    formulas = {formula.name: of_formula(formula, known[formula.name]["std"]["truth"]) for formula in FORMULAS}
    rows, wide = of_network()
    found = {"formulas": formulas, "GTC": of_gtc(), "network": rows, "bounds": wide}
    rounded = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.6g}"))
    packages = {name: version(name) for name in ("filterpy", "GTC")} | {"auto_LiRPA": auto_LiRPA.__version__}
    save("others", {"environment": environment() | {"packages": packages}, **rounded})


if __name__ == "__main__":
    main()

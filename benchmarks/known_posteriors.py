"""σ of estimators beside the posterior that their model has: in the data, in a gap between them, and beyond them.

    pip install '.[known]'
    python benchmarks/known_posteriors.py [--problems sine kink ring] [--models PBP EBP] [--out known_posteriors.json]
    python benchmarks/known_posteriors.py --table    # the table of docs/results/tables.md, from the results on disk

The network has one hidden layer of 16 ReLU units, and each estimator the prior of its default.  NUTS (numpyro, four
chains) samples the posterior of the same network, prior and normal noise, whose σ has a half-normal
prior.  ``r_hat`` is the largest of its outputs'.

    ratio        geometric mean of the estimator's epistemic σ over that of NUTS, calibration aside
    mean_error   root mean square of the difference of the means, in σ of NUTS
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import warnings
from typing import Any

import numpy as np
import torch
from _common import RESULTS, write

from momentgen import inference

UNITS, SEEDS = 16, 3
#: the prior of the weights: ``unit`` is N(0, 1), ``filter`` that of the density filter, whose precision is learnt
PRIORS = {"PBP": "filter", "EBP": "filter", "VBP": "unit", "Correlated": "unit"}


def draw(problem: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Features and targets in standard units, and where to look."""
    random = np.random.default_rng(seed)
    if problem == "ring":  # two features; the gap is its middle
        turn, far = random.uniform(0, 2 * np.pi, 60), random.uniform(1.0, 1.6, 60)
        x = far[:, None] * np.stack([np.cos(turn), np.sin(turn)], 1)
        y = x[:, 0] * x[:, 1]
        around = np.linspace(0, 2 * np.pi, 12, endpoint=False)
        circle = np.stack([np.cos(around), np.sin(around)], 1)
        places = {"data": 1.3 * circle, "gap": np.concatenate([0.2 * circle, 0.4 * circle]), "beyond": 2.6 * circle}
    else:
        x = random.uniform(0.7, 2.0, (40, 1)) * np.sign(random.uniform(-1, 1, (40, 1)))
        y = np.sin(2 * x[:, 0]) if problem == "sine" else np.abs(x[:, 0] + 1.2)
        sides, inner, outer = np.linspace(0.8, 1.9, 8), np.linspace(-0.4, 0.4, 9), np.linspace(2.6, 3.4, 5)
        places = {"data": np.concatenate([-sides, sides]), "gap": inner, "beyond": np.concatenate([-outer, outer])}
        places = {name: part[:, None] for name, part in places.items()}
    y = y + 0.1 * random.normal(size=len(y))
    centre, scale = x.mean(0), x.std(0)
    return (x - centre) / scale, (y - y.mean()) / y.std(), {name: (p - centre) / scale for name, p in places.items()}


def nuts(prior: str, x: Any, y: Any, places: dict[str, Any], draws: int) -> dict[str, Any]:
    """Mean and σ of the outputs, by the No-U-Turn sampler."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import split_gelman_rubin

    jax.config.update("jax_enable_x64", True)
    sizes = (x.shape[1], UNITS, 1)

    def outputs(weights: Any, at: Any) -> Any:
        for layer, w in enumerate(weights):
            at = jnp.concatenate([at if layer == 0 else jax.nn.relu(at), jnp.ones((len(at), 1))], 1) @ w
        return at[:, 0]

    def model() -> None:
        scale = numpyro.sample("precision", dist.Gamma(6.0, 6.0)) ** -0.5 if prior == "filter" else 1.0
        weights = []
        for k, (before, after) in enumerate(itertools.pairwise(sizes)):
            w = numpyro.sample(f"w{k}", dist.Normal(jnp.zeros((before + 1, after)), 1.0).to_event(2))
            weights.append(w * scale / ((before + 1) ** 0.5 if prior == "filter" else 1.0))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(outputs(weights, jnp.asarray(x)), noise), obs=jnp.asarray(y))
        numpyro.deterministic("f", outputs(weights, jnp.concatenate([jnp.asarray(p) for p in places.values()])))

    kernel = numpyro.infer.NUTS(model, target_accept_prob=0.9)
    run = numpyro.infer.MCMC(
        kernel, num_warmup=draws, num_samples=draws, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    run.run(jax.random.PRNGKey(0))
    f = np.asarray(run.get_samples(group_by_chain=True)["f"])
    return {
        "draws": draws,
        "mean": f.mean((0, 1)).tolist(),
        "std": f.std((0, 1)).tolist(),
        "r_hat": float(split_gelman_rubin(f).max()),
        "divergences": int(run.get_extra_fields()["diverging"].sum()),
    }


def ours(model: str, x: Any, y: Any, places: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    """Ratios and errors of one estimator, averaged over seeds."""
    at = np.concatenate(list(places.values()))
    ends = np.cumsum([len(part) for part in places.values()])[:-1]
    logs, offs = [], []
    for seed in range(SEEDS):
        made = getattr(inference, f"{model}Regressor")(hidden=(UNITS,), calibrate=None, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.fit(x, y)
        mean, epistemic, _ = made.predict_parts(at)
        logs.append(np.log(epistemic / truth["std"]))
        offs.append((mean - truth["mean"]) / truth["std"])
    groups = zip(places, np.split(np.array(logs), ends, 1), np.split(np.array(offs), ends, 1), strict=True)
    return {
        name: {"ratio": float(np.exp(log.mean())), "mean_error": float(np.sqrt((off**2).mean()))}
        for name, log, off in groups
    }


def table() -> str:
    rows = json.loads((RESULTS / "known_posteriors.json").read_text(encoding="utf-8"))
    heads = ["problem", "estimator", "σ in data", "in the gap", "beyond", "mean off in data", "in the gap", "beyond"]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for key, row in rows.items():
        if "NUTS" not in key:
            figures = [
                f"{row[name][what]:.2f}" for what in ("ratio", "mean_error") for name in ("data", "gap", "beyond")
            ]
            lines.append(f"| {' | '.join([*key.split(' | '), *figures])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=["sine", "kink", "ring"])
    parser.add_argument("--models", nargs="+", default=list(PRIORS))
    parser.add_argument("--draws", type=int, default=1000, help="of each chain, after as many steps of warm-up")
    parser.add_argument("--out", default="known_posteriors.json")
    parser.add_argument("--table", action="store_true", help="print the table of the page, and measure nothing")
    arguments = parser.parse_args()
    if arguments.table:
        sys.stdout.write(table())
        return
    torch.set_num_threads(1)
    path = RESULTS / arguments.out
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for problem in arguments.problems:
        x, y, places = draw(problem)
        for model in arguments.models:
            truth = f"{problem} | NUTS, {PRIORS[model]} prior"
            if truth not in rows:
                rows[truth] = nuts(PRIORS[model], x, y, places, arguments.draws)
            key = f"{problem} | {model}"
            if key not in rows:
                rows[key] = ours(model, x, y, places, rows[truth])
                print(key, rows[key], flush=True)
            write(path, dict(sorted(rows.items())))


if __name__ == "__main__":
    main()

"""Six users, from the import to the answer: what they type, step by step, and how long each step takes.

    python examples/journeys.py                  # all, into benchmarks/results/journeys.json
    python examples/journeys.py --table          # the table of docs/results/journeys.md, from the results on disk

A journey is a function that yields after each step what the step does and what came out.  Seconds are those of one
thread.  Code lines are the function's own.  The chemist has CHGNet where it is installed, elsewhere a small network.
"""

from __future__ import annotations

import argparse
import inspect
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

import momentgen
from momentgen import noisy, propagate

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "journeys.json"
Steps = Iterator[tuple[str, object]]


def engineer() -> Steps:
    """An image classifier and a noisy camera: σ, interval, will the class flip, which pixels matter."""
    from sklearn.datasets import load_digits

    images, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    images = images.float().reshape(-1, 1, 8, 8) / 16
    torch.manual_seed(0)
    net = trained(nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)), images, labels)
    yield "train the network in plain torch", f"{(net(images).argmax(1) == labels).float().mean():.1%} right"
    x = noisy(images[5:6], std=0.15)
    out = momentgen.convert(net)(x)
    yield "σ of the logits of one image", out
    best = out.mean.argmax()
    yield "interval of the best class's logit", "[{:.2f}, {:.2f}]".format(*(end[0, best] for end in out.interval()[:2]))
    flip = out.probability(lambda y: y.argmax(-1) != best)
    yield "probability that the class flips", f"{flip.value.item():.3f} ± {flip.error.item():.3f}"
    shares = momentgen.budget(net, x, groups="value")
    yield "pixels that matter", ", ".join(row["input"] for row in shares.rows(at=(0, int(best)))[:3])


def metrologist() -> Steps:
    """GUM H.2: a resistance from three correlated values, its interval, a limit, and the budget."""
    std = torch.tensor([0.0032, 9.5e-6, 0.00075], dtype=torch.float64)
    correlation = torch.tensor([[1, -0.36, 0.86], [-0.36, 1, -0.65], [0.86, -0.65, 1]], dtype=torch.float64)
    values = noisy((4.9990, 19.661e-3, 1.04446), cov=std[:, None] * correlation * std)
    yield "describe the inputs", values[0]

    def resistance(voltage: Tensor, current: Tensor, phase: Tensor) -> Tensor:
        return voltage / current * torch.cos(phase)

    out = propagate(resistance, *values)
    yield "mean and σ", out
    yield "interval", "[{:.3f}, {:.3f}]".format(*out.interval(0.95)[:2])
    yield "probability of more than 127.85 Ω", f"{out.probability(lambda y: y > 127.85).value:.4f}"
    yield "budget", "{input} {first:.0%}".format(**momentgen.budget(resistance, *values).rows()[0])


def roboticist() -> Steps:
    """A learned motion with uncertain weights: the state after two steps from a correlated one."""
    from momentgen.inference import MeanField, randomise

    torch.manual_seed(0)
    net = randomise(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4)).eval(), MeanField())
    cov = 0.01 * torch.tensor([[2.0, 1, 0, 0], [1, 2, 0, 0], [0, 0, 1, 0.5], [0, 0, 0.5, 1]])
    yield "random weights, and a correlated state", (state := noisy(torch.zeros(1, 4), cov=cov))
    with momentgen.joint():
        after_two = net(net(state))
    yield "two steps that share weights and noise", after_two
    yield "correlation of the first two coordinates", f"{after_two.correlation[0, 0, 1]:.2f}"
    fast = after_two.probability(lambda y: y.norm(dim=-1) > 0.3)
    yield "probability to be more than 0.3 m away", f"{fast.value.item():.3f} ± {fast.error.item():.3f}"


def chemist() -> Steps:
    """The energy that it takes to move an atom, where all positions are uncertain in both structures alike."""
    energy, positions, moved = potential()
    yield "load the potential", f"{len(positions)} atoms"
    x = noisy(positions, std=0.002)
    difference = propagate(lambda p: energy(p + moved) - energy(p), x)
    yield "energy difference, shared noise", difference
    apart = [propagate(energy, noisy(place, std=0.002)).var for place in (positions, positions + moved)]
    yield "as if the noise were not shared", f"σ {sum(apart) ** 0.5:.3g}"
    yield (
        "interval of the difference",
        "[{:.5g}, {:.5g}]".format(*(end.item() for end in difference.interval(0.95)[:2])),
    )


def statistician() -> Steps:
    """A table: a regressor with calibrated intervals, and rows whose features were measured with errors."""
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split

    from momentgen.inference import PBPRegressor

    x, y = load_diabetes(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.4, random_state=0)
    model = PBPRegressor(random_state=0).fit(x_train, y_train)
    yield "fit", f"R² {model.score(x_test, y_test):.2f}"
    low, high = model.predict_interval(x_test, coverage=0.95)
    yield "intervals of 95 %", f"hold {((low <= y_test) & (y_test <= high)).mean():.1%} of the test rows"
    wider = model.predict(x_test, return_std=True, x_std=0.02)[1] / model.predict(x_test, return_std=True)[1]
    yield "σ with errors in the features", f"{wider.mean():.2f} times as large"


def student() -> Steps:
    """An activation of one's own, written in torch and in no list of rules."""

    class Bump(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.exp(-x.square()) + 0.1 * x.relu()

    torch.manual_seed(0)
    net = momentgen.convert(nn.Sequential(nn.Linear(3, 32), Bump(), nn.Linear(32, 1)).eval())
    yield "write and convert the network", "no rule"
    out = net(noisy(torch.ones(1, 3), std=0.3))
    yield "σ", out
    yield "interval", "[{:.3f}, {:.3f}]".format(*(end.item() for end in out.interval(0.95)[:2]))


JOURNEYS: list[Callable[[], Steps]] = [engineer, metrologist, roboticist, chemist, statistician, student]


def trained(net: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """A classifier after twenty passes over the data."""
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(20):
        for batch in torch.randperm(len(x)).split(64):
            adam.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            adam.step()
    return net.eval().requires_grad_(False)


def potential() -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """An energy per atom, positions of rock salt a little off their places, and a displacement of its first atom."""
    cell = torch.tensor([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]) / 2
    moved = torch.zeros(8, 3).index_fill(0, torch.tensor([0]), 0.005)
    torch.manual_seed(0)
    places = cell + 0.02 * torch.randn(8, 3)
    try:
        from chgnet.model import CHGNet
        from pymatgen.core import Structure
    except ImportError:
        pair = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 1)).eval().requires_grad_(False)
        return lambda p: pair((p[:, None] - p).square().sum(-1, keepdim=True)).mean(), places, moved
    net = CHGNet.load(use_device="cpu", verbose=False).eval()
    graph = net.graph_converter(Structure((torch.eye(3) * 5.69).tolist(), ["Na"] * 4 + ["Cl"] * 4, cell.tolist()))

    def energy(p: Tensor) -> Tensor:
        graph.atom_frac_coord = p
        return net([graph], task="e")["e"][0]

    return energy, places, moved


def table() -> str:
    """The steps of each journey."""
    found = json.loads(RESULT.read_text())
    lines = ["| who | lines of code | step | seconds | answer |", "|" + " --- |" * 5]
    for name, row in found.items():
        for step in row["steps"]:
            who = f"{name} | {row['lines']}" if step is row["steps"][0] else " |"
            lines.append(f"| {who} | {step['step']} | {step['seconds']:.2g} | {step['answer']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a journey's name")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--table", action="store_true", help="print the documented table, and run nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(), end="")
        return
    torch.set_num_threads(1)
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for journey in (one for one in JOURNEYS if arguments.only in one.__name__):
        steps, started = [], time.perf_counter()
        for step, answer in journey():
            steps.append({"step": step, "seconds": round(time.perf_counter() - started, 3), "answer": str(answer)})
            Console(width=160).print(f"{journey.__name__}: {steps[-1]}", highlight=False)
            started = time.perf_counter()
        code = [line for line in inspect.getsource(journey).splitlines()[2:] if line.strip()]
        found[journey.__name__] = {"lines": len(code), "steps": steps}
    arguments.out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""What a trained network's propagated σ is worth, by method: ratio to Monte Carlo's, covariance, class posterior, cost.

    python benchmarks/correlation.py --data DIR          # DIR holds mnist.npz
    python benchmarks/correlation.py --data DIR --methods covariance correlated --networks mlp lenet
    python benchmarks/correlation.py --data DIR --few    # networks of few outputs, those of one to equal error
    python benchmarks/correlation.py --data DIR --flushed  # costs with numbers below the normal range taken as 0
    python benchmarks/correlation.py --table             # the table of docs/networks.md, from the results on disk

Networks are plain torch modules trained on MNIST, called as a user does: ``momentgen.convert(net, method)(Moments(x,
var))``.  The truth is Monte Carlo on the plain network.  Figures of a row, over examples and outputs:

    ratio        geometric mean of σ / σ_MC; spread is the standard deviation of its logarithm, less Monte Carlo's own
    mean_error   root mean square of (mean - mean_MC) / σ_MC; 1/√samples of it is Monte Carlo's own
    frobenius    error of the outputs' covariance over its norm; methods with variances only answer with a diagonal
    kl           of the class posterior E softmax(outputs), Monte Carlo's against the method's, in nats
    hidden       geometric mean of σ / σ_MC over the layers, a geometric mean over its units each
    cost         processor seconds over those of one plain forward pass of the same batch, of 64 examples
    equal_runs   samples of Monte Carlo with the same error of σ, 1 / 2 rms(log ratio)²
    speedup      what so many samples cost, measured beside it by those of "Monte Carlo 96", over the cost

Units whose σ_MC is below a hundredth of the layer's mean σ_MC are left out of ratios.  Memory is the peak of what torch
allocates in a call, over the plain network's; that of Monte Carlo is its chunks', of as many images at once as are
fast.  Rows are added to those that are there already if they were measured on the same inputs.  "one output" has the
ratio and the cost to equal error of networks of one output, each of the network's own, in batches of three sizes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _answers import MONTE_CARLO, Answer, Layers, Truth, answer, hidden, known_methods, runner, truth
from _common import RESULTS, console, environment, interleaved_medians
from _trained import NETWORKS, Images, Trained, cache_folder, images, trained
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor, nn

from momentgen import Moments
from momentgen.errors import MomentgenError

Row = dict[str, Any]


# -------------------------------------------------------------------- figures


def log_ratios(var: Tensor, expected: Tensor) -> Tensor:
    """log σ/σ_MC of the units that vary, flat; shapes (N, ...)."""
    std = expected.sqrt()
    counted = std > 0.01 * std.mean()
    return (var[counted] / expected[counted]).log() / 2


def figures(found: Answer, expected: Answer, samples: int) -> Row:
    """Errors of the output's moments; see the module's head."""
    logs = log_ratios(found.var, expected.var)
    finite = logs[logs.isfinite()]
    noise = 1 / (2 * samples)  # variance of log σ_MC
    square = max((finite.square().mean()).item() - noise, noise / 10)
    sigma = expected.var.sqrt()
    error = ((found.mean - expected.mean) / sigma)[sigma > 0]
    off = torch.linalg.matrix_norm(found.covariance - expected.covariance)
    tiny = torch.finfo(torch.float64).tiny
    kl = (expected.posterior * (expected.posterior.clamp_min(tiny) / found.posterior.clamp_min(tiny)).log()).sum(1)
    return {
        "ratio": finite.mean().exp().item(),
        "spread": math.sqrt(max(finite.var().item() - noise, 0.0)),
        "mean_error": error.square().mean().sqrt().item(),
        "frobenius": (off / torch.linalg.matrix_norm(expected.covariance)).mean().item(),
        "kl": kl.mean().item(),
        "equal_runs": 1 / (2 * square),
        "without_sigma": 1 - finite.numel() / expected.var.numel(),
    }


def own_error(expected: Answer, samples: int) -> Row:
    """What Monte Carlo's figures are uncertain by, one standard error each; ``kl`` is what its own noise adds."""
    norm = expected.covariance.square().sum((1, 2))
    trace = expected.var.sum(1)
    tiny = torch.finfo(torch.float64).tiny
    spread = expected.spread if expected.spread is not None else torch.zeros_like(expected.posterior)
    return {
        "spread": 1 / math.sqrt(2 * samples),
        "mean_error": 1 / math.sqrt(samples),
        "frobenius": ((trace.square() + norm) / (samples * norm)).sqrt().mean().item(),
        "kl": (spread / expected.posterior.clamp_min(tiny)).sum(1).mean().item() / (2 * samples),
    }


def hidden_figures(found: Layers, expected: Layers, samples: int) -> Row:
    """Ratio of σ over the hidden layers, its spread within a layer, and the error of the mean."""
    means, spreads, errors = [], [], []
    for name, calls in expected.items():
        for got, true in zip(found[name], calls, strict=True):
            logs = log_ratios(got.var, true.var.double())
            logs = logs[logs.isfinite()]
            if logs.numel() < 2:
                continue
            sigma = true.var.double().sqrt()
            counted = sigma > 0.01 * sigma.mean()
            means.append(logs.mean())
            spreads.append((logs.var() - 1 / (2 * samples)).clamp_min(0).sqrt())
            errors.append(((got.mean - true.mean)[counted] / sigma[counted]).square().mean().sqrt())
    ratios = torch.stack(means)
    return {
        "hidden": ratios.mean().exp().item(),
        "hidden_off": ratios.exp().sub(1).abs().mean().item(),
        "hidden_worst": ratios[ratios.abs().argmax()].exp().item(),
        "hidden_spread": torch.stack(spreads).mean().item(),
        "hidden_mean_error": torch.stack(errors).mean().item(),
    }


# ------------------------------------------------------------------ measuring


def inputs(one: Trained, var: float, count: int) -> Moments:
    x = one.x_test[:count]
    return Moments(x, torch.tensor(var).expand_as(x))


def measure(one: Trained, method: str, x: Moments, deep: Moments, expected: Truth) -> Row:
    """A method's figures on one case, or what it says that keeps it from answering."""
    if method == "linear" and one.recipe.own_noise:
        return {"error": "the Jacobian with respect to the input knows no noise of the network's own"}
    run, net = runner(method, one)
    try:
        row = figures(answer(run(x)), expected.output, expected.samples)
        layers = None if net is None else hidden(run, net, deep, expected.layers)
    except MomentgenError as error:
        return {"error": str(error)}
    if layers is not None:
        row |= hidden_figures(layers, expected.layers, expected.deep_samples)
    elif net is not None:
        row["hidden_note"] = "moments of the hidden layers could not be taken out of the laws"
    return row


def timed(
    one: Trained, contestants: dict[str, Callable[[Moments], object]], x: Moments, rounds: int
) -> dict[str, float]:
    """Processor seconds over the plain network's on the same batch, all taking turns, Monte Carlo's among them."""

    def call(run: Callable[[Moments], object]) -> Callable[[], object]:
        return lambda: run(x)

    @torch.no_grad()
    def plain() -> object:
        return one.net(x.mean)

    known = {BASELINE: runner(BASELINE, one)[0], **contestants}
    seconds = interleaved_medians(
        {"plain": plain, **{name: call(run) for name, run in known.items()}},
        rounds=rounds,
        clock=time.process_time,
        warm=True,
    )
    return {name: seconds[name] / seconds["plain"] for name in known}


#: what others are compared with at equal error
BASELINE = "Monte Carlo 96"


def speedup(equal_runs: float, method: str, costs: dict[str, float]) -> float:
    """What Monte Carlo costs for the same error of σ, over what the method costs."""
    return equal_runs * costs[BASELINE] / MONTE_CARLO[BASELINE] / costs[method]


class Only(nn.Module):
    """Some of a network's outputs."""

    def __init__(self, net: nn.Module, places: list[int]) -> None:
        super().__init__()
        self.net, self.places = net, places

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, self.places]


def only(one: Trained, places: list[int]) -> Trained:
    """The network with some of its outputs."""
    part = dataclasses.replace(one, net=Only(one.net, places))
    part.net.training = False  # its own flag only: dropout stays as it is
    return part


#: numbers of outputs by which the default chooses, and the methods among which it does
FEW, CHOICES = (1, 2, 3, 5, 10), ("adjoint", "correlated")


def few_outputs(one: Trained, x: Moments, rounds: int) -> dict[int, Row]:
    """Cost of ``adjoint`` and ``correlated`` on networks of few outputs; as in :func:`timed`."""
    cut = {count: only(one, list(range(count))) for count in FEW}
    found = timed(
        one, {f"{method} {count}": runner(method, cut[count])[0] for count in FEW for method in CHOICES}, x, rounds
    )
    return {
        count: {method: found[f"{method} {count}"] for method in CHOICES} | {BASELINE: found[BASELINE]} for count in FEW
    }


def one_output(one: Trained, x: Moments, expected: Truth, method: str) -> Row:
    """The errors of σ on networks of one output, each of the network's own."""
    logs = []
    for place in range(expected.output.mean.shape[1]):
        found = answer(runner(method, only(one, [place]))[0](x))
        logs.append((found.var[:, 0] / expected.output.var[:, place]).log() / 2)
    together, noise = torch.stack(logs), 1 / (2 * expected.samples)
    square = max(together.square().mean().item() - noise, noise / 10)
    return {"ratio": together.mean().exp().item(), "equal_runs": 1 / (2 * square)}


def memory(one: Trained, methods: list[str], x: Moments, folder: Path) -> dict[str, Row]:
    """Peak of what torch has allocated during a call, over the plain network's."""

    @torch.no_grad()
    def plain(x: Moments) -> object:
        return one.net(x.mean)

    least = peak(plain, x, folder)
    return {method: {"memory": peak(runner(method, one)[0], x, folder) / least} for method in methods}


def peak(run: Callable[[Moments], object], x: Moments, folder: Path) -> int:
    """Bytes on top of what was allocated before, by the profiler's record of allocations."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run(x)
    path = folder / "memory.json"
    profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    path.unlink()
    steps = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    now = most = 0
    for _, size in sorted(steps, key=lambda step: step[0]):
        now += size
        most = max(most, now)
    return most


# -------------------------------------------------------------------- results


class Results:
    """Rows by network, case and method on disk, added to if the settings are the same."""

    def __init__(self, path: Path, settings: Row) -> None:
        self.path = path
        self.data: Row = {"environment": environment(), "settings": settings, "networks": {}, "cases": {}, "rows": {}}
        if path.exists():
            earlier = json.loads(path.read_text())
            if earlier["settings"] == settings:
                self.data = {**earlier, "environment": environment()}
            else:
                console.print("the results on disk were measured with other settings and are replaced")

    def add(self, section: str, name: str, values: Row) -> None:
        self.data.setdefault(section, {})[name] = {key: rounded(value) for key, value in values.items()}

    def write(self) -> None:
        cases = [f"{name} | {case}" for name, recipe in NETWORKS.items() for case in recipe.cases()]
        rows = sorted(self.data["rows"].items(), key=lambda item: cases.index(item[0].rpartition(" | ")[0]))
        self.data["rows"] = dict(rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.data, indent=1) + "\n")


def rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def show(results: Results) -> None:
    data = results.data
    table = Table("method", box=SIMPLE_HEAD, pad_edge=False)
    for heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.columns[0].no_wrap = True
    last, remarks = "", []
    for key, row in data["rows"].items():
        case, _, method = key.rpartition(" | ")
        if case != last:
            accuracy = data["networks"][case.partition(" | ")[0]]["accuracy"]
            table.add_section()
            table.add_row(f"[bold]{case.replace(' | ', ', ')}[/bold], {accuracy:.1%} right")
            own = data["cases"][case]
            table.add_row("  Monte Carlo's own error", *cells(own), style="dim")
        last = case
        table.add_row(f"  {method}", *cells(row))
        remarks += [f"{key}: {row[kind]}" for kind in ("error", "hidden_note") if kind in row]
    console.width = max(console.width, 160)
    console.print(table)
    for remark in remarks:
        console.print(remark, highlight=False, markup=False)


#: heading, key and form of a figure
COLUMNS = (
    ("σ/σ_MC", "ratio", ".3f"), ("spread", "spread", ".3f"), ("mean, σ", "mean_error", ".3f"),
    ("Frobenius", "frobenius", ".3f"), ("KL", "kl", ".1e"), ("hidden", "hidden", ".3f"),
    ("spread", "hidden_spread", ".3f"), ("cost", "cost", ".1f"), ("memory", "memory", ".1f"),
    ("equal runs", "equal_runs", ".3g"), ("speed-up", "speedup", ".3g"),
)  # fmt: skip


def cells(row: Row) -> list[str]:
    return [format(row[name], form) if name in row else "–" for _, name, form in COLUMNS]


#: names of the networks in the documentation
TITLES = {
    "mlp": "MLP", "lenet": "LeNet", "mnist_example": "PyTorch's MNIST example", "resnet": "small ResNet",
    "nine_layers": "nine layers", "vit": "small ViT", "mlp_dropout": "MLP", "lenet_dropout": "LeNet",
}  # fmt: skip


def documented(data: Row) -> str:
    """The table of ``docs/networks.md``, in Markdown."""
    lines = [
        "| network, noise | `ap2` | `correlated` | hidden layers | mean, in σ | `adjoint` | Monte Carlo, 96 samples "
        "| cost of `ap2`, `correlated`, `adjoint` | memory of these, Monte Carlo |",
        "| --- " * 9 + "|",
    ]
    for case in dict.fromkeys(key.rpartition(" | ")[0] for key in data["rows"]):
        found = {method: data["rows"].get(f"{case} | {method}", {}) for method in SHOWN}
        network, _, noise = case.partition(" | ")
        both = {method: f"{row['ratio']:.3f} ± {row['spread']:.3f}" if row else "–" for method, row in found.items()}
        cost = " / ".join(f"{found[method]['cost']:.0f}" for method in SHOWN[:3])
        cells = [
            f"{TITLES[network]}, {noise if 'dropout' in noise else f'input {noise}'}", f"{found['ap2']['ratio']:.2f}",
            both["correlated"], f"{found['correlated']['hidden']:.2f}", f"{found['correlated']['mean_error']:.2f}",
            both["adjoint"], both["Monte Carlo 96"], cost,
            " / ".join(f"{found[method]['memory']:.0f}" for method in SHOWN),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


#: methods of the documented table, those whose cost it has first
SHOWN = ("ap2", "correlated", "adjoint", "Monte Carlo 96")


def measure_memory(results: Results, data: Images, arguments: argparse.Namespace) -> None:
    """Adds to the rows what their methods allocate."""
    for name in arguments.networks:
        one = trained(name, data, arguments.checkpoints, arguments.quick)
        batch = inputs(one, max(one.recipe.variances), arguments.batch)
        rows = {key: row for key, row in results.data["rows"].items() if key.startswith(f"{name} | ")}
        fine = {key.rpartition(" | ")[2] for key, row in rows.items() if "error" not in row}
        found = memory(one, [m for m in arguments.methods if m in fine], batch, arguments.checkpoints)
        for key, row in rows.items():
            method = key.rpartition(" | ")[2]
            if method in found and "error" not in row:
                results.add("rows", key, row | found[method])
    results.write()


def measure_flushed(one: Trained, results: Results, arguments: argparse.Namespace) -> None:
    """Costs at the least noise, which makes the most subnormal numbers, where the processor takes these as 0."""
    batch = inputs(one, min(one.recipe.variances), arguments.batch)
    methods = {method: runner(method, one)[0] for method in ("ap2", *CHOICES)}
    torch.set_flush_denormal(True)
    found = timed(one, methods, batch, arguments.rounds)
    torch.set_flush_denormal(False)
    results.add("cost, subnormal numbers flushed", one.name, dict(found))
    results.write()


#: sizes of batches at which networks of one output are timed: in a small one a call's overhead counts for more
BATCHES = (64, 256, 1024)


def measure_few(one: Trained, results: Results, arguments: argparse.Namespace) -> None:
    """Costs of few outputs, and networks of one output at equal error."""
    noisiest = max(one.recipe.variances)
    batch = inputs(one, noisiest, arguments.batch)
    for count, row in few_outputs(one, batch, arguments.rounds).items():
        results.add("few outputs", f"{one.name} | {count}", row)
    alone = {method: runner(method, only(one, [0]))[0] for method in CHOICES}
    costs = {
        size: timed(one, alone, inputs(one, noisiest, size), arguments.rounds)
        for size in ((arguments.batch,) if arguments.quick else BATCHES)
    }
    for case, var in one.recipe.cases().items():
        x, deep = inputs(one, var, arguments.inputs), inputs(one, var, arguments.hidden_inputs)
        expected = truth(one, x, arguments.samples, deep, arguments.hidden_samples, arguments.checkpoints)
        for method in CHOICES:
            row = one_output(one, x, expected, method)
            for size, spent in costs.items():
                row[f"cost, batch of {size}"] = spent[method]
                row[f"speedup, batch of {size}"] = speedup(row["equal_runs"], method, spent)
            results.add("one output", f"{one.name} | {case} | {method}", row)
    results.write()


def main() -> None:
    known = known_methods()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--methods", nargs="+", choices=known, default=known, metavar="METHOD", help=", ".join(known))
    parser.add_argument("--samples", type=int, default=4000, help="of Monte Carlo, an image")
    parser.add_argument("--inputs", type=int, default=16, help="test images")
    parser.add_argument("--hidden-samples", type=int, default=4000, help="of Monte Carlo at hidden layers")
    parser.add_argument("--hidden-inputs", type=int, default=4, help="test images at hidden layers")
    parser.add_argument("--batch", type=int, default=64, help="test images in the timing")
    parser.add_argument("--rounds", type=int, default=3, help="of timing")
    parser.add_argument("--few", action="store_true", help="measure only networks of few outputs")
    parser.add_argument("--flushed", action="store_true", help="measure only costs without subnormal numbers")
    parser.add_argument("--table", action="store_true", help="print the documented table, and measure nothing")
    parser.add_argument("--memory", action="store_true", help="measure memory too")
    parser.add_argument("--checkpoints", type=Path, default=cache_folder(), help="folder for weights and Monte Carlo")
    parser.add_argument("--out", type=Path, default=RESULTS / "correlation.json")
    parser.add_argument("--quick", action="store_true", help="seconds, to see that it runs; made-up images do")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.table:
        print(documented(json.loads(arguments.out.read_text())))
        return
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        arguments.samples, arguments.inputs, arguments.rounds = 200, 2, 1
        arguments.hidden_samples, arguments.hidden_inputs, arguments.batch = 100, 1, 2
    elif arguments.data is None:
        parser.error("--data is needed, but for --quick")
    wanted = ("samples", "inputs", "hidden_samples", "hidden_inputs", "batch")
    data = images(arguments.data)
    settings = {"data": data.source, "quick": arguments.quick, **{name: getattr(arguments, name) for name in wanted}}
    results = Results(arguments.out, settings)
    for name in arguments.networks:
        one = trained(name, data, arguments.checkpoints, arguments.quick)
        size = sum(parameter.numel() for parameter in one.net.parameters())
        results.add("networks", name, {"accuracy": one.accuracy, "parameters": size, "trained_seconds": one.seconds})
        if arguments.few:
            measure_few(one, results, arguments)
            continue
        if arguments.flushed:
            measure_flushed(one, results, arguments)
            continue
        spent: dict[str, float] = {}
        for case, var in one.recipe.cases().items():
            x, deep = inputs(one, var, arguments.inputs), inputs(one, var, arguments.hidden_inputs)
            expected = truth(one, x, arguments.samples, deep, arguments.hidden_samples, arguments.checkpoints)
            results.add("cases", f"{name} | {case}", own_error(expected.output, expected.samples))
            rows = {method: measure(one, method, x, deep, expected) for method in arguments.methods}
            fine = [method for method, row in rows.items() if "error" not in row and method not in spent]
            batch = inputs(one, var, arguments.batch)
            if fine:
                spent |= timed(one, {method: runner(method, one)[0] for method in fine}, batch, arguments.rounds)
            for method, row in rows.items():
                if "error" not in row:
                    row["cost"] = spent[method]
                    row["speedup"] = speedup(row["equal_runs"], method, spent)
                results.add("rows", f"{name} | {case} | {method}", row)
            results.write()
    if arguments.memory:  # last, so that torch's profiler has no part in the timings
        measure_memory(results, data, arguments)
    show(results)
    console.print(f"numbers: {arguments.out}", highlight=False)


if __name__ == "__main__":
    main()

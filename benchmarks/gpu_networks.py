"""Networks on a GPU: what a training step and an answer with an error bar cost, and whether they say what the CPU says.

    python benchmarks/gpu_networks.py --data DIR         # DIR holds mnist.npz

A step of ``ap2`` is over a step of the plain network, batch 256.  An answer is over a plain forward pass of the same
batch; its σ is compared with plain draws on the GPU, and with the σ that the CPU gives for the same seed.  Times are
elapsed ones between two synchronisations, medians of contestants that take turns.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from _common import console, environment, interleaved_medians, save
from _trained import NETWORKS, Trained, cache_folder, images, trained
from networks import contestants, lenet, mlp, pooled
from torch import Tensor

import momentgen
from momentgen import Moments, nn

#: methods and their settings, by the name in the results
METHODS: dict[str, tuple[str, dict[str, int]]] = {
    "controlled, 16 rows": ("controlled", {"max_rows": 16}),
    "controlled": ("controlled", {}),
    "ap2": ("ap2", {}),
}
STEPS = {
    "mlp": mlp,
    "lenet": lenet,
    "lenet, average pools": partial(pooled, pool=nn.AvgPool2d),
    "lenet, max pools": partial(pooled, pool=nn.MaxPool2d),
}
TRUTH = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist.npz")
    parser.add_argument("--checkpoints", type=Path, default=cache_folder(), help="folder for weights")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--var", type=float, default=0.1, help="variance of the pixels' noise")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--networks", nargs="+", default=[name for name in NETWORKS if not NETWORKS[name].own_noise])
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=list(STEPS), metavar="NETWORK")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else "none"
    results: dict[str, object] = {"environment": {**environment(), "gpu": gpu}, "var": arguments.var}
    answers: dict[str, object] = {}
    ratios: dict[str, object] = {}
    results |= {"steps": ratios, "answers": answers}
    data = images(arguments.data)
    for name in arguments.networks:
        answers[name] = measured(trained(name, data, arguments.checkpoints, quick=False), device, arguments)
        console.print_json(data={name: answers[name]})
        save("gpu_networks", results)
    for name in arguments.steps:
        ratios[name] = steps(STEPS[name], device)
        console.print_json(data={name: ratios[name]})
        save("gpu_networks", results)


def synchronised(run: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """The call, and waiting until the device has done it."""

    def wait() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return wait


def steps(make: Callable[[bool], nn.Sequential], device: torch.device) -> dict[str, float]:
    """Training steps over those of the plain network."""
    with device:
        runs = contestants(make, 256)
    wanted = ["plain", "ap2", "ap2, σ 1", "ap2, σ 0.01", "ap2, varying noise"]
    found = interleaved_medians({name: synchronised(runs[name], device) for name in wanted}, rounds=9, warm=True)
    return {name: round(found[name] / found["plain"], 3) for name in wanted}


def measured(one: Trained, device: torch.device, arguments: argparse.Namespace) -> dict[str, object]:
    """Costs by batch, and errors of σ on 64 images."""
    var = torch.tensor(arguments.var)
    here = one.net.to("cpu")
    few = Moments(one.x_test[:64], var.expand_as(one.x_test[:64]))
    on_cpu = answer(here, "controlled, 16 rows")(few).std
    net = one.net.to(device)
    found: dict[str, object] = {}
    for batch in arguments.batches:
        x = one.x_test[:batch].to(device)
        noisy = Moments(x, var.to(device).expand_as(x))
        calls: dict[str, Callable[[], object]] = {"plain": partial(plain, net, x)}
        calls |= {name: partial(answer(net, name), noisy) for name in METHODS}
        seconds = interleaved_medians(
            {name: synchronised(run, device) for name, run in calls.items()}, rounds=arguments.rounds, warm=True
        )
        costs = {name: round(seconds[name] / seconds["plain"], 2) for name in METHODS}
        found[f"batch {batch}"] = {"plain_milliseconds": round(1e3 * seconds["plain"], 4), "cost": costs}
    x = few.mean.to(device)
    noisy = Moments(x, var.to(device).expand_as(x))
    expected, chance = truth(net, noisy)
    for name in METHODS:
        got = answer(net, name)(noisy)
        logs = (got.std.double() / expected).log()
        row = {"rms": round(math.sqrt(logs.square().mean().item()), 4)}
        if got.std_error is not None:
            error = (got.std_error.double().square() + (chance * expected).square()).sqrt()
            row["coverage"] = round(((got.std - expected).abs() <= 2 * error).double().mean().item(), 4)
            row["rows"] = int(got.rows or 0)
        if name == "controlled, 16 rows":
            row["apart_from_cpu"] = float(f"{(got.std.cpu() / on_cpu).log().abs().max().item():.3g}")
        found[name] = row
    return found


def answer(net: torch.nn.Module, name: str) -> Callable[[Moments], Moments]:
    method, settings = METHODS[name]
    converted = momentgen.convert(net, method, **settings)

    def run(x: Moments) -> Moments:
        with torch.no_grad():
            out: Moments = converted(x)
        return out

    return run


@torch.no_grad()
def plain(net: torch.nn.Module, x: Tensor) -> Tensor:
    out: Tensor = net(x)
    return out


@torch.no_grad()
def truth(net: torch.nn.Module, x: Moments) -> tuple[Tensor, Tensor]:
    """σ by plain draws, and its own relative error, shapes (N, K)."""
    torch.manual_seed(1)
    total, square, fourth, count = (torch.zeros((), dtype=torch.float64) for _ in range(4))
    centre = net(x.mean).double()
    while count < TRUTH:
        many = x.mean.repeat(20, 1, 1, 1)
        out = net(many + x.var.sqrt().repeat(20, 1, 1, 1) * torch.randn_like(many))
        off = out.double().view(20, len(x.mean), -1) - centre
        total = total.to(off) + off.sum(0)
        square, fourth = square.to(off) + off.square().sum(0), fourth.to(off) + off.pow(4).sum(0)
        count += 20
    mean = total / count.to(total)
    std = (square / count.to(total) - mean.square()).sqrt()
    kurtosis = fourth / count.to(total) / std.pow(4)
    return std, ((kurtosis - 1).clamp_min(0.5) / 4 / count.to(total)).sqrt()


if __name__ == "__main__":
    main()

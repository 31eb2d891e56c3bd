"""Kernels of a wheel beside kernels compiled on this machine: relu, gelu, an MLP's training step; time and bits.

    python benchmarks/shipped.py FOLDER [--rounds 30]

FOLDER holds the levels' directories, as ``momentgen/kernels`` in an installed wheel of one platform.  Both kinds serve
in one process and take turns in every round; the ratio is of medians, in processor time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import momentgen
from momentgen.generated import gelu, relu
from momentgen.native import shipped
from momentgen.runtime import Op
from momentgen.runtime import shipped as loading

#: elements
SIZE = 10**6


def main() -> None:
    from _common import console, environment, interleaved_medians, save

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--levels", type=int, default=1, help="how many, from the best on")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    loading.FOLDER = asked.folder.resolve()
    best = loading.shipped_folder()
    assert best is not None, f"{asked.folder} has no kernels for this processor"
    folders = [asked.folder.resolve() / level.name for level in shipped.LEVELS]
    folders = [each for each in folders[folders.index(best) :] if each.is_dir()][: asked.levels]
    use = {"here": kernels_of(None), **{each.name: kernels_of(each) for each in folders}}
    found = {}
    for name, work in (("relu", of_op(relu)), ("gelu", of_op(gelu)), ("MLP's training step", step())):

        def with_kernels(kind: str, work: Callable[[], object] = work) -> Callable[[], object]:
            def run() -> object:
                use[kind]()
                return work()

            return run

        seconds = interleaved_medians(
            {kind: with_kernels(kind) for kind in use}, rounds=asked.rounds, warm=True, clock=time.process_time
        )
        found[name] = {f"{kind} over here": round(seconds[kind] / seconds["here"], 3) for kind in use if kind != "here"}
        found[name]["here, seconds"] = round(seconds["here"], 6)
        console.print(name, found[name])
    save("shipped", {"environment": environment(), "threads": asked.threads, "found": found})


def kernels_of(folder: Path | None) -> Callable[[], None]:
    """Something to call that lets kernels of a wheel's folder serve from now on; those compiled here if None."""
    chosen = loading.shipped_folder
    loading.shipped_folder = lambda: folder
    kernels = [op._kernels[op.default] for op in (relu, gelu)]
    native = []
    for kernel in kernels:
        kernel._native.clear()
        native.append(kernel.native())
    loading.shipped_folder = chosen

    def serve() -> None:
        for kernel, own in zip(kernels, native, strict=True):
            kernel._native[False] = own

    return serve


def of_op(op: Op) -> Callable[[], object]:
    """Forward and backward of a million elements."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(SIZE, generator=generator).requires_grad_()
    var = torch.rand(SIZE, generator=generator).requires_grad_()
    grad = torch.ones(SIZE)

    def run() -> object:
        out = op(mean, var)
        return torch.autograd.grad([out.mean, out.var], [mean, var], [grad, grad])

    return run


def step() -> Callable[[], object]:
    """A training step of 784-1024-1024-10 on a batch of 256, by ap2."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    net = momentgen.convert(plain.train())
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = momentgen.noisy(torch.randn(256, 784), std=0.1)

    def run() -> object:
        optimiser.zero_grad()
        out = net(x)
        (out.mean.square().mean() + out.var.mean()).backward()
        optimiser.step()
        return out

    return run


if __name__ == "__main__":
    main()

"""What float64 costs: C over C in float32, and the PyTorch form, which serves without a compiler, over C.

For each rule: the bare kernels of the exact variant at a million elements, forward and backward, in CPU time on one
thread, so that other work on the machine counts for little; all in turns in one process, and medians are compared.
glibc is told to keep what tensors leave free: by default it gives the 8 MB of a result back in some runs and not in
others, and then the pages that the next call is given anew take longer than the arithmetic of a small kernel.

Memory is the growth of a process's peak, in bytes an element, over a call with its gradients and second derivatives.

    python benchmarks/float64.py [--rules relu,gelu] [--rounds 21] [--elements 1000000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import torch
from _common import console, environment, results_table, save
from torch import Tensor

import momentgen.generated
from momentgen.runtime import Op

ELEMENTWISE = tuple(n for n in momentgen.generated.__all__ if isinstance(getattr(momentgen.generated, n), Op))
#: the PyTorch form is slow: it is measured on this part of the elements
_PART = 8

#: for glibc: no mapping of its own for a large block, and none of the heap given back
_KEPT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 28),
}

_MEMORY = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
import momentgen.generated
op, size = getattr(momentgen.generated, sys.argv[1]), int(sys.argv[2])
def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))
def run(size):
    of = {"mean": lambda: torch.randn(size), "var": lambda: torch.rand(size) + 0.1, "cov": lambda: torch.zeros(size)}
    leaves = [of[name.rstrip("12")]().double().requires_grad_() for name in op.input_names]
    found, out = [], op(*leaves)
    out = out if isinstance(out, tuple) else (out,)
    found.append(status("VmHWM:") - before)
    out = torch.autograd.grad(sum((o * o).sum() for o in out), leaves, create_graph=True)
    found.append(status("VmHWM:") - before)
    torch.autograd.grad(sum((o * o).sum() for o in out), leaves)
    return [*found, status("VmHWM:") - before]
before = 0
run(100)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS:")
print(*[grown / size for grown in run(size)])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", default=",".join(ELEMENTWISE), help="comma-separated")
    parser.add_argument("--memory", default="silu,gelu", help="rules whose memory is measured")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--elements", type=int, default=1_000_000)
    arguments = parser.parse_args()
    if not all(name in os.environ for name in _KEPT):  # read by glibc as a process begins
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **_KEPT})
    torch.set_num_threads(1)

    rows = []
    table = results_table("rule", "direction", "float32, ns", "float64 / float32", "PyTorch / float64")
    for rule in arguments.rules.split(","):
        for direction in ("forward", "backward"):
            seconds = cpu_medians(
                contestants(getattr(momentgen.generated, rule), direction, arguments.elements), arguments.rounds
            )
            one = {name: spent / arguments.elements for name, spent in seconds.items()}
            one["torch"] *= _PART
            double, form = one["float64"] / one["float32"], one["torch"] / one["float64"]
            rows.append(
                {
                    "rule": rule,
                    "direction": direction,
                    "nanoseconds_an_element": {name: round(1e9 * spent, 2) for name, spent in one.items()},
                    "float64_over_float32": round(double, 2),
                    "torch_over_float64": round(form, 1),
                }
            )
            table.add_row(rule, direction, f"{1e9 * one['float32']:.2f}", f"{double:.1f} ×", f"{form:.0f} ×")
    console.print(table)
    found = {"environment": {**environment(), **_KEPT}, "elements": arguments.elements, "rounds": arguments.rounds}
    found["results"] = rows
    save("float64", found)  # memory takes minutes more
    memory = [
        {"rule": rule, "compiler": compiler, "bytes_an_element": bytes_an_element(rule, arguments.elements, compiler)}
        for rule in arguments.memory.split(",")
        if rule
        for compiler in (True, False)
    ]
    console.print(memory)
    save("float64", {**found, "memory": memory})


def contestants(op: Op, direction: str, n: int) -> dict[str, Callable[[], object]]:
    """The kernels of the exact variant on one set of tensors."""
    generator = torch.Generator().manual_seed(0)
    var = 3 * torch.rand(n, generator=generator, dtype=torch.float64)
    of = {"mean": 2 * torch.randn(n, generator=generator, dtype=torch.float64), "var": var, "cov": 0.1 * var}
    inputs = [of[name.rstrip("12")].clone() for name in op.input_names]
    if direction == "backward":
        inputs += [torch.randn(n, generator=generator, dtype=torch.float64) for _ in op.outputs]
    by_c, by_torch = (op.kernel(direction, variant="exact", backend=backend) for backend in ("c", "torch"))
    params = {p.name: p.default if p.default is not None else max(p.low, 0.5) for p in op.parameters}

    def timed(run: Callable[..., object], tensors: list[Tensor]) -> Callable[[], object]:
        return lambda: run(*tensors, **params)

    return {
        "float32": timed(by_c, [tensor.float() for tensor in inputs]),
        "float64": timed(by_c, inputs),
        "torch": timed(by_torch, [tensor[: n // _PART].clone() for tensor in inputs]),
    }


def cpu_medians(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of CPU time a call, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(rounds + 1):
        for name, run in runs.items():
            if name == "torch" and round_ > 3:
                continue
            started = time.thread_time()
            run()
            seconds[name].append(time.thread_time() - started)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def bytes_an_element(rule: str, elements: int, compiler: bool) -> dict[str, float]:
    """Growth of the peak of a process of its own: the op, then with gradients, then with second derivatives."""
    variables = {name: value for name, value in os.environ.items() if name not in _KEPT}
    variables |= {"OMP_NUM_THREADS": "1", **({} if compiler else {"CC": "/nonexistent"})}
    command = [sys.executable, "-c", _MEMORY, rule, str(elements)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    names = ("forward", "backward", "second derivatives")
    return {name: round(float(text)) for name, text in zip(names, done.stdout.split(), strict=True)}


if __name__ == "__main__":
    main()

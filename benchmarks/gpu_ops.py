"""The ops on a GPU: the same bits as the C kernels on the CPU, and the bandwidth reached.

Needs a GPU with Triton 3.6 or later, and a C compiler for the comparison of
bits.  Bandwidth is of the bytes a kernel must move: 16 an element forward, 24
backward (one random input); beside it stands that of a copy of as many bytes.

    python benchmarks/gpu_ops.py [--elements 67108864]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from _common import console, environment, results_table, save
from torch import Tensor

import momentgen.generated
from momentgen.runtime import Op

COMPARED = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1 << 26)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("gpu_ops: expected a GPU that torch can use, found none")

    table = results_table("rule", "variant", "direction", "differing bits", "GB/s", "of the copy's", words=3)
    rows = []
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compiled, kernels(), chunksize=1))
    for rule, variant, direction in kernels():
        op = getattr(momentgen.generated, rule)
        differing = differing_outputs(op, variant, direction)
        rate, copy = bandwidths(op, variant, direction, arguments.elements)
        row = {"rule": rule, "variant": variant, "direction": direction, "compared": COMPARED}
        rows.append({**row, "differing": differing, "gigabytes_per_second": rate, "copy": copy})
        table.add_row(rule, variant, direction, str(differing), f"{rate:.0f}", f"{rate / copy:.2f}")
    console.print(table)
    gpu = torch.cuda.get_device_name()
    save("gpu_ops", {"environment": {**environment(), "gpu": gpu}, "elements": arguments.elements, "results": rows})
    if any(row["differing"] for row in rows):
        raise SystemExit("gpu_ops: the GPU gives other bits than the CPU")


def kernels() -> list[tuple[str, str, str]]:
    """Rule, variant and direction of all kernels."""
    ops = {rule: getattr(momentgen.generated, rule) for rule in momentgen.generated.__all__}
    return [
        (rule, variant, direction)
        for rule, op in ops.items()
        if isinstance(op, Op)  # a reduction over an axis has no kernel of its own
        for variant in op.variants
        for direction in ("forward", "backward")
    ]


def compiled(kernel: tuple[str, str, str]) -> None:
    """Compile a kernel for the GPU and for the CPU, into the caches on disk."""
    rule, variant, direction = kernel
    op = getattr(momentgen.generated, rule)
    inputs = hard_inputs(op, direction)
    op.kernel(direction, variant=variant, backend="c")(*[tensor[:16] for tensor in inputs])
    op.kernel(direction, variant=variant, backend="triton")(*[tensor.cuda() for tensor in inputs])


def differing_outputs(op: Op, variant: str, direction: str) -> int:
    """How many of the outputs have other bits on the GPU; any NaN equals any other."""
    inputs = hard_inputs(op, direction)
    on_cpu = op.kernel(direction, variant=variant, backend="c")(*inputs)
    on_gpu = op.kernel(direction, variant=variant, backend="triton")(*[tensor.cuda() for tensor in inputs])
    differing = 0
    for here, there in zip(on_cpu, on_gpu, strict=True):
        there = there.cpu()
        same = (here.view(torch.int32) == there.view(torch.int32)) | (here.isnan() & there.isnan())
        differing += int((~same).sum())
    return differing


def hard_inputs(op: Op, direction: str) -> list[Tensor]:
    """Half moderate inputs, half random bit patterns (subnormals, infinities and NaNs included), and every edge."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.tensor([0.0, -0.0, 1e-45, 1e-38, 1.2e-38, 1e-30, 1.0, 1e4, 1e30, 3.4e38, float("inf"), float("nan")])
    edges = torch.cat([edges, -edges])
    first, second = (part.flatten() for part in torch.meshgrid(edges, edges, indexing="ij"))

    def random(spread: float, positive: bool) -> Tensor:
        half = COMPARED // 2
        moderate = spread * torch.randn(half, generator=generator)
        low, high = -(2**31), 2**31 - 1
        patterns = torch.randint(low, high, (COMPARED - half,), generator=generator, dtype=torch.int64)
        wild = patterns.to(torch.int32).view(torch.float32)
        both = torch.cat([moderate, wild])
        return both.abs() if positive else both

    inputs = []
    for _ in range(op.inputs):
        mean, var = random(3.0, positive=False), random(2.0, positive=True)
        mean[: len(first)], var[: len(first)] = first, second
        inputs += [mean, var]
    if "cov" in op.input_names:
        inputs.append(torch.zeros_like(inputs[0]))
    if direction == "backward":
        inputs += [random(1.0, positive=False) for _ in op.outputs]
    return inputs


def bandwidths(op: Op, variant: str, direction: str, n: int) -> tuple[float, float]:
    """Gigabytes a second of the kernel, and of a copy of as many bytes."""
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = [torch.rand(n, device="cuda", generator=generator) + 0.1 for _ in range(len(op.input_names))]
    if direction == "backward":
        inputs += [torch.randn(n, device="cuda", generator=generator) for _ in op.outputs]
    outputs = len(op.outputs if direction == "forward" else op.input_names)
    gigabytes = 4e-9 * n * (len(inputs) + outputs)
    source = torch.rand(n * (len(inputs) + outputs) // 2, device="cuda")
    target = torch.empty_like(source)
    kernel = op.kernel(direction, variant=variant, backend="triton")
    return gigabytes / seconds(lambda: kernel(*inputs)), gigabytes / seconds(lambda: target.copy_(source))


def seconds(run: Callable[[], object], rounds: int = 30) -> float:
    """Median time of a call on the device."""
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e-3 * start.elapsed_time(end))
    return statistics.median(times)


if __name__ == "__main__":
    main()

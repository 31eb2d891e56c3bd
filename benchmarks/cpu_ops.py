"""What a generated op costs on the CPU, in units of a memory copy of the same bytes.

For each rule, variant and size: the bare C kernel with outputs allocated
beforehand, the op as a user calls it, and the same formula in eager PyTorch.
The copy reads and writes as many bytes as the kernel: forward, two floats an
element in and two out; backward, four in and two out (copied as three in, three
out).  Everything is measured in turns in one run, and medians are compared.

    python benchmarks/cpu_ops.py [--rules relu,abs] [--rounds 60] [--threads 2]
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable

import torch
from _common import console, environment, interleaved_medians, results_table, save
from torch import Tensor

import momentgen.generated
from momentgen.runtime import Op
from momentgen.runtime.native import parameter_block

SIZES = {"4M": 1 << 22, "65k": 1 << 16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", default=",".join(momentgen.generated.__all__), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rows = []
    table = results_table(
        "rule", "variant", "size", "direction", "copy", "kernel", "op", "eager", "eager / kernel", words=4
    )
    for rule in arguments.rules.split(","):
        op = getattr(momentgen.generated, rule)
        for variant in op.variants:
            for label, n in SIZES.items():
                for direction in ("forward", "backward"):
                    contestants = contestants_for(op, variant, direction, n)
                    seconds = interleaved_medians(contestants, rounds=arguments.rounds)
                    ratios = {name: round(spent / seconds["copy"], 3) for name, spent in seconds.items()}
                    row = {"rule": rule, "variant": variant, "elements": n, "direction": direction}
                    rows.append({**row, "copy_microseconds": round(1e6 * seconds["copy"], 1), "over_copy": ratios})
                    eager = ratios.get("eager")
                    table.add_row(
                        rule,
                        variant,
                        label,
                        direction,
                        f"{1e6 * seconds['copy']:.0f}",
                        f"{ratios['kernel']:.2f} ×",
                        f"{ratios['op']:.2f} ×",
                        f"{eager:.1f} ×" if eager else "",
                        f"{eager / ratios['kernel']:.1f}" if eager else "",
                    )
    console.print(table)
    save("cpu_ops", {"environment": environment(), "rounds": arguments.rounds, "results": rows})


def contestants_for(op: Op, variant: str, direction: str, n: int) -> dict[str, Callable[[], object]]:
    """What is timed against what, on one set of tensors."""
    inputs, outputs = tensors_for(op, direction, n)
    contestants: dict[str, Callable[[], object]] = {
        "copy": copy_of(inputs, outputs),
        "kernel": bare_kernel(op, variant, direction, inputs, outputs),
        "op": through_op(op, variant, direction, inputs),
    }
    if (formula := EAGER.get(op.name)) and variant in ("exact", "tight"):
        contestants["eager"] = eager(formula, direction, inputs)
    return contestants


def tensors_for(op: Op, direction: str, n: int) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs of the kernel, for ``backward`` with the gradients that come in, and room for its outputs."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(n, generator=generator)
    var = torch.rand(n, generator=generator) + 0.1
    of = {"mean": mean, "var": var, "cov": 0.1 * var}
    inputs = [of[name.rstrip("12")].clone() for name in op.input_names]
    if direction == "backward":
        inputs += [torch.randn(n, generator=generator) for _ in op.outputs]
    return inputs, [torch.empty(n) for _ in (op.outputs if direction == "forward" else op.input_names)]


def copy_of(inputs: list[Tensor], outputs: list[Tensor]) -> Callable[[], object]:
    """A copy of as many bytes."""
    half = inputs[0].numel() * (len(inputs) + len(outputs)) // 2
    return functools.partial(torch.empty(half).copy_, torch.rand(half))


def bare_kernel(
    op: Op, variant: str, direction: str, inputs: list[Tensor], outputs: list[Tensor]
) -> Callable[[], object]:
    """The C function on raw addresses: no allocation, no checks."""
    kernel = op._kernels[variant]
    function = getattr(kernel.native(), direction)
    block = parameter_block(kernel.scalars(tuple(float(p.default) for p in op.parameters)))
    n = inputs[0].numel()
    # Addresses are read in the call, so that it keeps the tensors alive.
    return lambda: function(n, *[t.data_ptr() for t in inputs], block, *[t.data_ptr() for t in outputs])


def through_op(op: Op, variant: str, direction: str, inputs: list[Tensor]) -> Callable[[], object]:
    """What a user gets: forward without gradients, or the backward pass that autograd runs."""
    if direction == "forward":
        return lambda: op(*inputs, variant=variant)
    count = len(op.input_names)
    leaves = [tensor.clone().requires_grad_() for tensor in inputs[:count]]
    result = op(*leaves, variant=variant)
    return lambda: torch.autograd.grad(result, leaves, inputs[count:], retain_graph=True)


# ------------------------------------- the formulas in eager PyTorch, as a careful user writes them


def standard_normal(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sigma = var.sqrt()
    a = mean / sigma
    return sigma, torch.special.ndtr(a), torch.exp(-0.5 * a * a) * (1 / math.sqrt(2 * math.pi))


def eager_relu(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    sigma, cdf, pdf = standard_normal(mean, var)
    first = mean * cdf + sigma * pdf
    return first, (mean * first + var * cdf - first * first).clamp_min(0)


def eager_leaky_relu(mean: Tensor, var: Tensor, slope: float = 0.01) -> tuple[Tensor, Tensor]:
    # slope * x + (1 - slope) * relu(x), and Cov(x, relu(x)) = var * cdf
    sigma, cdf, pdf = standard_normal(mean, var)
    relu = mean * cdf + sigma * pdf
    shared = var * cdf
    spread = mean * relu + shared - relu * relu
    second = slope**2 * var + (1 - slope) ** 2 * spread + 2 * slope * (1 - slope) * shared
    return slope * mean + (1 - slope) * relu, second.clamp_min(0)


def eager_abs(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    sigma, cdf, pdf = standard_normal(mean, var)
    first = 2 * (mean * cdf + sigma * pdf) - mean
    return first, (mean * mean + var - first * first).clamp_min(0)


def eager_heaviside(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    first = torch.special.ndtr(mean * var.rsqrt())
    return first, first * (1 - first)


EAGER: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "relu": eager_relu,
    "leaky_relu": eager_leaky_relu,
    "abs": eager_abs,
    "heaviside": eager_heaviside,
}


def eager(
    formula: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], direction: str, inputs: list[Tensor]
) -> Callable[[], object]:
    if direction == "forward":
        return lambda: formula(*inputs)
    leaves = [tensor.clone().requires_grad_() for tensor in inputs[:-2]]
    result = formula(*leaves)
    return lambda: torch.autograd.grad(result, leaves, inputs[-2:], retain_graph=True)


if __name__ == "__main__":
    main()

"""The least time that a kernel's arithmetic can take on this processor, over a memory copy of the same bytes.

For each kernel, a loop that does as many multiplications (fused ones with them), additions, divisions and roots an
element as the kernel, all independent of each other and all in registers: no chain to wait for, no load, store, select
or integer operation.  No order of the kernel's operations takes less.  Copy, floor and kernel take turns in one run, on
arrays that stay in the cache; on larger ones the copy is slower than the arithmetic and says nothing about it.

    python benchmarks/arithmetic_floor.py [--rules relu] [--rounds 60] [--threads 2]
"""

from __future__ import annotations

import argparse
import ctypes
import functools
from collections.abc import Callable

import torch
from _common import console, environment, interleaved_medians, results_table, save
from cpu_ops import contestants_for

import momentgen.generated
from momentgen.compiler.toolchain.c_libraries import compiled

ELEMENTS = 1 << 16
#: kind -> operations in a certificate; a fused multiply-add takes the place of a multiplication in the pipe
_KINDS = {"div": ("div",), "sqrt": ("sqrt",), "mul": ("mul", "fma"), "add": ("add", "sub")}
_INSTRUCTION = {"mul": "vmulps", "add": "vaddps", "div": "vdivps", "sqrt": "vsqrtps"}
_REGISTERS = 28  # accumulators, so that none is needed again before its result is there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", default="relu", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        parser.error(f"needs a processor with AVX-512, this one has {torch.backends.cpu.get_cpu_capability()}")

    rows = []
    table = results_table("rule", "variant", "direction", *_KINDS, "floor", "kernel", words=3)
    for rule in arguments.rules.split(","):
        op = getattr(momentgen.generated, rule)
        for variant in ("exact", "tight"):
            for direction in ("forward", "backward"):
                operations = op.certificate(variant).operations[direction]
                counts = {kind: sum(operations.get(name, 0) for name in names) for kind, names in _KINDS.items()}
                contestants = contestants_for(op, variant, direction, ELEMENTS)
                turns = {name: contestants[name] for name in ("copy", "kernel")}
                seconds = interleaved_medians({**turns, "floor": floor(counts)}, rounds=arguments.rounds)
                over_copy = {name: round(seconds[name] / seconds["copy"], 3) for name in ("floor", "kernel")}
                row = {"rule": rule, "variant": variant, "direction": direction, "operations": counts}
                rows.append({**row, "over_copy": over_copy})
                shown = [f"{over_copy[name]:.2f} ×" for name in ("floor", "kernel")]
                table.add_row(rule, variant, direction, *map(str, counts.values()), *shown)
    console.print(table)
    found = {"environment": environment(), "rounds": arguments.rounds, "elements": ELEMENTS, "results": rows}
    save("arithmetic_floor", found)


def floor(counts: dict[str, int]) -> Callable[[], object]:
    """A call that does so many operations for each of ``ELEMENTS`` elements, 16 at a time, and nothing else."""
    rest = dict(counts)
    body = []
    while any(rest.values()):  # the kinds in turns, so that every pipe has work all the time
        kind = max(rest, key=lambda name: rest[name] / counts[name] if counts[name] else 0.0)
        rest[kind] -= 1
        body.append(f"{_INSTRUCTION[kind]} %%zmm31, %%zmm{{}}, %%zmm{{}}\\n")
    lines = []
    for index, text in enumerate(body):
        register = index % _REGISTERS
        both = text.replace("%%zmm31, ", "") if "sqrt" in text else text
        lines.append(f'            "{both.format(register, register)}"')
    clobbered = ", ".join(f'"xmm{i}"' for i in range(_REGISTERS))
    source = f"""#include <stdint.h>
void arithmetic(int64_t n)
{{
#pragma omp parallel for if(n > 8192)
    for (int64_t i = 0; i < n; i += 16)
        __asm__ volatile(
{chr(10).join(lines)}
            : : : {clobbered});
}}
"""
    function = compiled(source).arithmetic
    function.argtypes = [ctypes.c_int64]
    return functools.partial(function, ELEMENTS)


if __name__ == "__main__":
    main()

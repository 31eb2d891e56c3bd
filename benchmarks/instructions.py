"""Instructions an element of the Triton kernels, compiled ahead of time for a GPU (none is needed).

A kernel is bound by memory while its instructions take less time than its
bytes.  On an H200 (sm_90: 132 multiprocessors of 128 lanes at 1.98 GHz, 4.8
TB/s) the balance is near 110 instructions an element forward (16 bytes) and
165 backward (24 bytes).

    python benchmarks/instructions.py [--target sm_90]
"""

from __future__ import annotations

import argparse
import importlib.resources
import sys
from pathlib import Path

from _common import console, environment, results_table, save

import momentgen.generated
from momentgen.runtime import Op

# What tests and benchmarks share stands with the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from machine_code import TARGETS, compile_triton, inspect

BALANCE = {"forward": 110, "backward": 165}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=list(TARGETS), default="sm_90")
    arguments = parser.parse_args()

    table = results_table(
        "rule", "variant", "direction", "instructions", "arithmetic", "over balance", "registers", "spilled", words=3
    )
    rows = []
    for rule in momentgen.generated.__all__:
        op = getattr(momentgen.generated, rule)
        if not isinstance(op, Op):  # a reduction over an axis has no kernel of its own
            continue
        for variant in op.variants:
            source = importlib.resources.files(op.package).joinpath(f"{variant}_triton.py").read_text(encoding="utf-8")
            for direction, balance in BALANCE.items():
                found = inspect(compile_triton(source, f"{rule}_{variant}_{direction}_kernel", arguments.target))
                # Where the machine code itself cannot be read, the arithmetic of the assembly is the next best.
                count = found.per_element if found.sass_per_element is None else found.sass_per_element
                rows.append(
                    {
                        "rule": rule,
                        "variant": variant,
                        "direction": direction,
                        "machine_instructions": found.sass_per_element,
                        "arithmetic_instructions": found.per_element,
                        "over_memory_balance": count / balance,
                        "registers": found.registers,
                        "spilled": found.spilled,
                        "problems": list(found.problems),
                    }
                )
                machine = "unknown" if found.sass_per_element is None else f"{found.sass_per_element:.0f}"
                numbers = (machine, f"{found.per_element:.0f}", f"{count / balance:.2f}")
                table.add_row(rule, variant, direction, *numbers, str(found.registers), str(found.spilled))
    console.print(table)
    results = {"environment": environment(), "target": arguments.target, "balance": BALANCE, "results": rows}
    save(f"instructions_{arguments.target}", results)


if __name__ == "__main__":
    main()

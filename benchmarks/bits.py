"""Do all backends give the same bits?  Every kernel at a million inputs: C however it is compiled, NumPy, Triton.

Compiles every rule anew for its programs, so it takes some minutes.

    python benchmarks/bits.py [--points 1000000] [--only NAME]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from _common import console, environment, results_table, save

from momentgen.compiler.certify.bounds import kernel_params
from momentgen.compiler.certify.evidence import read_evidence
from momentgen.compiler.derive import derive
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.pipeline import compile_rule
from momentgen.compiler.strategies import stabilise
from momentgen.rule import load_rules
from momentgen.rule.files import evidence_path

# What tests and benchmarks share stands with the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from same_bits import Job, builds, different, interpret, interpreter_fuses, kernel_inputs, run_c

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--only", help="rules, comma-separated; all unless given")
    arguments = parser.parse_args()

    ways = builds()
    backends = [name for name in ways if name != "default"] + ["numpy"]
    if interpreter_fuses():
        backends.append("triton_interpreter")
    table = results_table("rule", "variant", "direction", *backends)
    rows = []
    for rule in load_rules(ROOT / "rules"):
        # Inputs are made for one mean and one variance.
        if len(rule.inputs) > 1 or rule.noise is not None:
            continue
        if arguments.only and rule.name not in arguments.only.split(","):
            continue
        started = time.perf_counter()
        evidence = read_evidence(evidence_path(ROOT / "rules" / f"{rule.name}.py"), rule.name)
        compiled = compile_rule(rule, evidence=evidence)
        stables = {stable.variant: stable for stable in stabilise(derive(rule))}
        console.print(f"{rule.name}: compiled in {time.perf_counter() - started:.0f} s")
        for variant, programs in compiled.programs.items():
            committed = (ROOT / "generated" / rule.name / f"{variant}.c").read_text() == compiled.files[f"{variant}.c"]
            for program, direction in zip(programs, ("forward", "backward"), strict=True):
                inputs = kernel_inputs(arguments.points, direction, seed=0)
                named = kernel_params(program, rule.defaults, stables[variant].scalars(rule.defaults))
                params = tuple(named.values())
                source = compiled.files[f"{variant}.c"]
                want = run_c(source, program.name, inputs, params, ways["default"])
                counts = {}
                for name in backends:
                    if name == "numpy":
                        outputs = evaluate(program, dict(zip(program.inputs, inputs, strict=True)), named)
                        got = tuple(outputs[output] for output, _ in program.outputs)
                    elif name == "triton_interpreter":
                        triton = compiled.files[f"{variant}_triton.py"]
                        (got,) = interpret([Job(triton, f"{program.name}_kernel", inputs, params)])
                    else:
                        got = run_c(source, program.name, inputs, params, ways[name])
                    counts[name] = different(got, want)
                rows.append(
                    {
                        "rule": rule.name,
                        "variant": variant,
                        "direction": direction,
                        "outputs": 2 * inputs[0].size,
                        "differ_from_c": counts,
                        "committed": committed,
                    }
                )
                table.add_row(rule.name, variant, direction, *(str(counts[name]) for name in backends))
    console.print(table)
    save("bits", {"environment": environment(), "points": arguments.points, "results": rows})


if __name__ == "__main__":
    main()

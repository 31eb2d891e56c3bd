"""How long `momentgen build rules/` takes, from nothing and with nothing to do; and whether it gives generated/ again.

Machines differ, and one machine from hour to hour, by a factor of two: a loop of Python is timed before and after the
cold build, on as many cores.

    python benchmarks/build_time.py
    python benchmarks/build_time.py --walk relu silu [--root DIR]   # files that rules go through, of any checkout

The walk of a rule is how many files and functions of the compiler its compilation enters, and how often a function of
one file calls one of another.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import console, environment, results_table, save

ROOT = Path(__file__).parents[1]
RULES = ROOT / "rules"


#: the rules of the compiler's first release, of which each exercises another stage
FIRST = ("relu", "leaky_relu", "abs", "heaviside", "logistic_transform")


def timed_build(rules: Path, out: Path) -> float:
    """Seconds of one build, the interpreter's start included."""
    command = [sys.executable, "-m", "momentgen", "build", str(rules.resolve()), "--out", str(out)]
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT)  # where -m looks first
    return time.perf_counter() - started


def _loop(count: int) -> float:
    started, total = time.perf_counter(), 0
    for i in range(count):
        total += i
    return time.perf_counter() - started


def yardstick() -> float:
    """Seconds that adding up ten million integers takes while every core does so: the median of five times."""
    cores = os.cpu_count() or 1
    with multiprocessing.Pool(cores) as pool:
        found = sorted(second for _ in range(5) for second in pool.map(_loop, [10_000_000] * cores, chunksize=1))
    return found[len(found) // 2]


def some_rules(folder: Path, names: tuple[str, ...]) -> Path:
    """A directory of rules with these alone, and what exhaustive runs found of them."""
    (folder / "evidence").mkdir(parents=True)
    for name in names:
        shutil.copy(RULES / f"{name}.py", folder)
        if (evidence := RULES / "evidence" / f"{name}.json").is_file():
            shutil.copy(evidence, folder / "evidence")
    return folder


def differing(out: Path) -> list[str]:
    """Files that are not, byte for byte, those of the committed generated/; either side may lack one."""
    sides = [
        {p.relative_to(side): p for p in side.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
        for side in (out, ROOT / "generated")
    ]
    names = {name for side in sides for name in side if not name.name.startswith(".")}
    same = [name for name in names if all(name in side for side in sides)]
    return sorted(
        str(name) for name in names if name not in same or sides[0][name].read_bytes() != sides[1][name].read_bytes()
    )


#: prints the walk of the rule in a file
_WALK = """
import json, runpy, sys
import momentgen.compiler as compiler
from momentgen.compiler.pipeline import compile_rule
from momentgen.rule import Rule
rule = next(value for value in runpy.run_path(sys.argv[1]).values() if isinstance(value, Rule))
root, files, functions, calls = compiler.__path__[0], set(), set(), 0
def entered(frame, event, _):
    global calls
    file = frame.f_code.co_filename
    if event == "call" and file.startswith(root):
        files.add(file)
        functions.add((file, frame.f_code.co_qualname))
        before = frame.f_back.f_code.co_filename
        calls += before.startswith(root) and before != file
sys.setprofile(entered)
compile_rule(rule)
sys.setprofile(None)
print(json.dumps({"files": len(files), "functions": len(functions), "calls_between_files": calls}))
"""


def walk(name: str, root: Path) -> dict[str, int]:
    """What compiling a rule of a checkout enters."""
    command = [sys.executable, "-c", _WALK, str(root / "rules" / f"{name}.py")]
    found = subprocess.run(
        command, check=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, text=True, stdout=subprocess.PIPE
    )
    counted: dict[str, int] = json.loads(found.stdout.splitlines()[-1])
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walk", nargs="+", help="rules whose walk to print, in the place of all else")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to walk through")
    given = parser.parse_args()
    if given.walk:
        for name in given.walk:
            console.print(name, walk(name, given.root.resolve()))
        return
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        first = timed_build(some_rules(here / "rules", FIRST), here / "first")
        out = here / "generated"
        loops = [yardstick()]
        cold = timed_build(RULES, out)
        loops.append(yardstick())
        idle = sorted(timed_build(RULES, out) for _ in range(5))[2]
        changed = differing(out)
    rules = sorted(path.stem for path in RULES.glob("[!_]*.py"))
    table = results_table("build", "seconds")
    table.add_row(f"cold, {', '.join(FIRST)}", f"{first:.1f}")
    table.add_row(f"cold, all {len(rules)} rules", f"{cold:.1f}")
    table.add_row("nothing to do", f"{idle:.2f}")
    console.print(table)
    shown = " and ".join(f"{second:.2f}" for second in loops)
    console.print(f"ten million additions of Python's took {shown} s before and after the cold build")
    console.print(f"{len(changed)} files differ from generated/ {', '.join(changed)}")
    found = {"rules": rules, "cores": os.cpu_count(), "cold_seconds": cold, "idle_seconds": idle}
    found |= {"loop_of_ten_million_seconds": loops}
    found |= {"walks": {name: walk(name, ROOT) for name in ("relu", "silu")}}
    found |= {"first_rules": FIRST, "first_cold_seconds": first, "files_that_differ_from_generated": changed}
    save("build_time", {"environment": environment(), **found})


if __name__ == "__main__":
    main()

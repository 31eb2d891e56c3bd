"""How long `momentgen build rules/` takes: from nothing, and with nothing to do.

python benchmarks/build_time.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _common import console, environment, save
from rich.box import SIMPLE_HEAD
from rich.table import Table

RULES = Path(__file__).parents[1] / "rules"


def timed_build(out: Path) -> float:
    """Seconds of one build, the start of the interpreter included."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "momentgen", "build", str(RULES), "--out", str(out)], check=True)
    return time.perf_counter() - started


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "generated"
        cold = timed_build(out)
        idle = sorted(timed_build(out) for _ in range(5))[2]
    table = Table("build", "seconds", box=SIMPLE_HEAD, pad_edge=False)
    table.add_row("cold", f"{cold:.1f}")
    table.add_row("nothing to do", f"{idle:.2f}")
    console.print(table)
    rules = sorted(path.stem for path in RULES.glob("[!_]*.py"))
    found = {"rules": rules, "cores": os.cpu_count(), "cold_seconds": cold, "idle_seconds": idle}
    save("build_time", {"environment": environment(), **found})


if __name__ == "__main__":
    main()

"""Every op without a C compiler: a million elements, forward and backward, in float32 and float64, under 1 GB.

Each op runs in a process of its own whose ``$CC`` does not exist and whose cache of compiled kernels is empty, so that
the PyTorch form serves.  Memory is the peak of the whole process, torch itself included (some 200 MB); seconds are
processor time of one thread.

    python benchmarks/without_compiler.py [--elements 1000000] [--rules relu,gelu]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import momentgen.generated
from momentgen.runtime import Op, Reduction

OPS = tuple(n for n in momentgen.generated.__all__ if isinstance(getattr(momentgen.generated, n), (Op, Reduction)))
#: of the process, in bytes
LIMIT = 1e9

_RUN = """
import json, resource, sys, time, warnings
import torch
import momentgen.generated
torch.set_num_threads(1)
torch.manual_seed(0)
op, size = getattr(momentgen.generated, sys.argv[1]), int(sys.argv[2])
names = getattr(op, "input_names", ("mean", "var"))
shape = (size,) if hasattr(op, "input_names") else (size // 100, 100)  # a softmax is of 100 classes
found = {}
for dtype in (torch.float32, torch.float64):
    of = {
        "mean": lambda: torch.randn(shape),
        "var": lambda: torch.rand(shape) + 0.1,
        "cov": lambda: 0.1 * torch.rand(shape) - 0.05,
    }
    leaves = [of[name.rstrip("12")]().to(dtype).requires_grad_() for name in names]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.process_time()
        out = op(*leaves)
        (out.sum() if isinstance(out, torch.Tensor) else out.mean.sum() + out.var.sum()).backward()
        seconds = time.process_time() - start
    assert all(bool(leaf.grad.isfinite().all()) for leaf in leaves)
    found[str(dtype).removeprefix("torch.")] = {"seconds": round(seconds, 2), "warned": len(caught)}
found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
print(json.dumps(found))
"""


def main() -> None:
    from _common import console, environment, save
    from rich.progress import track
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--rules", default=",".join(OPS))
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        own = {**os.environ, "CC": "/nonexistent/cc", "MOMENTGEN_CACHE": cache}
        for name in track(arguments.rules.split(","), console=console, transient=True):
            done = subprocess.run(
                [sys.executable, "-c", _RUN, name, str(arguments.elements)],
                env=own, check=False, capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                sys.exit(f"{name}: {done.stderr}")
            rows[name] = json.loads(done.stdout.strip().splitlines()[-1])
    table = Table("op", "float32, s", "float64, s", "peak, MB")
    for name, row in rows.items():
        table.add_row(name, str(row["float32"]["seconds"]), str(row["float64"]["seconds"]), f"{row['megabytes']:.0f}")
    console.print(table)
    worst = max(rows, key=lambda name: float(rows[name]["megabytes"]))
    console.print(f"most: {worst}, {rows[worst]['megabytes']:.0f} MB; asked: at most {LIMIT / 1e6:.0f} MB")
    save("without_compiler", {"environment": environment(), "elements": arguments.elements, "ops": rows})


if __name__ == "__main__":
    main()

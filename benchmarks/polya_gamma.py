"""A million draws from PG(1, z): the compiled C against the package `polyagamma`.

`polyagamma` is timed by its method `alternate`, which is right for all z, and by its default, which is not (far from it
above z = 170); with one z for all draws, where it is fastest, and with a z for each, as a Gibbs sampler has them and as
ours always takes them.  It knows no threads: on two, two Python threads make half of the draws each.  Milliseconds are
processor time on one thread, which does not count what other processes take, and wall-clock time on two.

    python benchmarks/polya_gamma.py [--draws 1000000] [--rounds 15]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from polyagamma import random_polyagamma

from momentgen.inference.polya_gamma_sampler.function import polya_gamma

Z = (0.0, 1.0, 50.0)
OURS, THEIRS = "C", "polyagamma alternate"


def contestants(z: float, n: int, threads: int, pool: ThreadPoolExecutor) -> dict[str, Callable[[], Any]]:
    """Name -> what makes ``n`` draws."""
    tilts = torch.full((n,), z, dtype=torch.float64)
    narrow = tilts.float()
    own = torch.Generator().manual_seed(0)
    each = np.array_split(np.full(n, z), threads)
    theirs = [np.random.default_rng(seed) for seed in range(threads)]

    def package(method: str | None, shared: bool) -> Callable[[], Any]:
        def part(values: Any, rng: np.random.Generator) -> Any:
            if shared:
                return random_polyagamma(1, z, size=values.size, method=method, random_state=rng)
            return random_polyagamma(1, values, method=method, random_state=rng)

        if threads == 1:
            return lambda: part(each[0], theirs[0])
        return lambda: list(pool.map(part, each, theirs))

    return {
        OURS: lambda: polya_gamma(1, tilts, generator=own),
        "C, float32": lambda: polya_gamma(1, narrow, generator=own),
        f"{THEIRS}, one z": package("alternate", True),
        f"{THEIRS}, a z each": package("alternate", False),
        "polyagamma default, one z": package(None, True),
        "polyagamma default, a z each": package(None, False),
    }


def main() -> None:
    from _common import console, environment, interleaved_medians, save
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    rows: dict[str, dict[str, dict[str, float]]] = {}
    table = Table("threads", "z", "who", "ms", "over C")
    with ThreadPoolExecutor(2) as pool:
        for group in ("1 thread", "2 threads"):
            threads = 1 if group == "1 thread" else 2
            torch.set_num_threads(threads)
            for z in Z:
                runs = contestants(z, arguments.draws, threads, pool)
                clock = time.process_time if threads == 1 else time.perf_counter
                seconds = interleaved_medians(runs, rounds=arguments.rounds, clock=clock)
                row = {name: round(value * 1e3, 3) for name, value in seconds.items()}
                rows.setdefault(group, {})[f"z = {z:g}"] = row
                for name, value in row.items():
                    table.add_row(group, f"{z:g}", name, f"{value:.3g}", f"{value / row[OURS]:.2f} ×")
                table.add_section()
    console.print(table)
    # Where others compute too, threads wait for their cores.
    load = [round(value, 1) for value in os.getloadavg()]
    results = {"environment": environment(), "load average": load, "draws": arguments.draws, "milliseconds": rows}
    save("polya_gamma", results)


if __name__ == "__main__":
    main()

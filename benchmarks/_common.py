"""What the benchmarks share: interleaved timing, a description of the machine, results on disk."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

__all__ = [
    "RESULTS",
    "allocated",
    "console",
    "environment",
    "interleaved_medians",
    "results_table",
    "save",
    "taking_turns",
    "write",
]

sys.path.append(str(Path(__file__).parents[1] / "examples"))  # data are loaded as there
RESULTS = Path(__file__).parent / "results"
console = Console()


def interleaved_medians(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    at_least: float = 2e-3,
    clock: Callable[[], float] = time.perf_counter,
    warm: bool = False,
) -> dict[str, float]:
    """Median seconds a call of each contestant.

    All take turns in every round, so that a slow spell of the machine hits all alike; fast ones
    are called often enough in a turn to last ``at_least`` seconds.  ``clock`` is another clock,
    such as :func:`time.process_time`, which does not count what other processes take.  With ``warm``
    each begins its turn with a call that is not timed.
    """
    calls = {}
    for name, run in contestants.items():
        run()
        started = clock()
        run()
        calls[name] = max(1, round(at_least / max(clock() - started, 1e-7)))
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            if warm:
                run()
            started = clock()
            for _ in range(calls[name]):
                run()
            seconds[name].append((clock() - started) / calls[name])
    return {name: statistics.median(times) for name, times in seconds.items()}


def taking_turns(
    script: str, arguments: list[str], against: Path | None, turns: int
) -> dict[str, list[dict[str, dict[str, float]]]]:
    """What ``script --json`` prints last, of the present momentgen and another checkout's, in processes that alternate.

    The script runs in both cases, so that only the library differs.
    """
    folders = {"present": Path(__file__).parent.parent} | ({"other": against} if against else {})
    found: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in folders}
    for _ in range(turns):
        for name, folder in folders.items():
            variables = {**os.environ, "PYTHONPATH": str(folder)}
            command = [sys.executable, script, "--json", *arguments]
            out = subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout
            found[name].append(json.loads(out.strip().splitlines()[-1]))
    return found


def allocated(run: Callable[[], object]) -> int:
    """Bytes that a call takes on top of what was allocated before, by the profiler's record of allocations."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    # the trace as a file takes thirty times the memory of these events
    events = profile.profiler.kineto_results.events()
    steps = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    now = most = 0
    for _, size in sorted(steps, key=lambda step: step[0]):
        now += size
        most = max(most, now)
    return most


def environment() -> dict[str, object]:
    """The machine and the versions, without names or paths of this very machine."""
    import torch

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    found = {"cpu": cpu, "python": platform.python_version(), "torch": torch.__version__, "os": platform.system()}
    if "triton" in sys.modules:
        found["triton"] = sys.modules["triton"].__version__
    return {**found, "threads": torch.get_num_threads()}


def results_table(*heads: str, words: int | None = None) -> Table:
    """A table of results; columns after the first ``words`` have numbers, which stand to the right."""
    table = Table(*heads, box=SIMPLE_HEAD, pad_edge=False)
    for column in [] if words is None else table.columns[words:]:
        column.justify = "right"
    return table


def save(name: str, results: object) -> None:
    """Write ``results/NAME.json``, and say so."""
    path = RESULTS / f"{name}.json"
    write(path, results)
    console.print(f"written: {path.relative_to(Path(__file__).parents[1])}", highlight=False)


def write(path: Path, results: object) -> None:
    """Write results as a whole: a run may be stopped at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    part.replace(path)

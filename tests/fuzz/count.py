"""Counts of many seeds, in processes side by side, in a file that can be added to."""

import json
import multiprocessing
import subprocess
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from fuzz.generate import program
from fuzz.judge import METHODS, Verdict, judged, minimal

__all__ = ["added", "counted", "read", "write"]

Record = dict[str, Any]

#: seconds between two writings of the file
_EVERY = 5.0


def _one(seed: int) -> Record:
    """The record of one seed."""
    outcomes: dict[str, dict[str, int]] = {method: {} for method in METHODS}
    faults = []
    made = program(seed)
    try:
        for verdict in judged(made):
            name = verdict.outcome
            if name == "fault":
                name = f"fault: {verdict.kind}"
                faults.append(_fault(seed, verdict))
            outcomes[verdict.method][name] = 1
    except Exception:  # of the judge itself: a fault like others, or one seed would end a run of thousands
        faults = [{"seed": seed, "method": "the judge", "kind": "exception", "found": traceback.format_exc()[-600:]}]
    return {"seeds": [[seed, seed]], "functions": sorted(set(made.functions)), "outcomes": outcomes, "faults": faults}


def _fault(seed: int, verdict: Verdict) -> Record:
    least, found = minimal(program(seed), verdict)
    return {
        "seed": seed,
        "method": verdict.method,
        "kind": verdict.kind,
        "dtype": least.dtype,
        "takes": {given.name: given.same or given.text for given in least.given},
        "taken": least.taken,
        "lines": [line for step in least.steps for line in (*step.parts, *step.lines)],
        "returned": least.returned,
        **({} if least.randomised is None else {"randomised": least.randomised}),
        "found": found.text[:300],
    }


def _begin() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def _records(seeds: Iterable[int], processes: int) -> Iterator[Record]:
    """Records of seeds, in their order."""
    if processes == 1:
        _begin()
        yield from map(_one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _begin, maxtasksperchild=100) as pool:
        yield from pool.imap(_one, seeds)


def added(one: Record, other: Record) -> Record:
    """Two records of different seeds as one.

    >>> a = {"seeds": [[0, 4]], "functions": ["abs"], "outcomes": {"ap2": {"right": 5}}, "faults": []}
    >>> b = {"seeds": [[5, 5]], "functions": ["cos"], "outcomes": {"ap2": {"noted": 1}}, "faults": []}
    >>> found = added(a, b)
    >>> found["seeds"], found["networks"], found["functions"], found["outcomes"]
    ([[0, 5]], 6, ['abs', 'cos'], {'ap2': {'noted': 1, 'right': 5}})
    """
    seeds: list[list[int]] = []
    for first, last in sorted([*one.get("seeds", []), *other.get("seeds", [])]):
        if seeds and first <= seeds[-1][1]:
            raise ValueError(f"seeds {first} to {last} are counted twice")
        if seeds and first == seeds[-1][1] + 1:
            seeds[-1][1] = last
        else:
            seeds.append([first, last])
    outcomes: dict[str, dict[str, int]] = {}
    for part in (one, other):
        for method, numbers in part.get("outcomes", {}).items():
            for name, number in numbers.items():
                mine = outcomes.setdefault(method, {})
                mine[name] = mine.get(name, 0) + number
    return {
        "commits": sorted({*one.get("commits", []), *other.get("commits", [])}),
        "torch": torch.__version__,
        "seeds": seeds,
        "networks": sum(last - first + 1 for first, last in seeds),
        "functions": sorted({*one.get("functions", []), *other.get("functions", [])}),
        "outcomes": {method: dict(sorted(numbers.items())) for method, numbers in outcomes.items()},
        "faults": sorted([*one.get("faults", []), *other.get("faults", [])], key=lambda fault: fault["seed"]),
    }


def _commit() -> list[str]:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return [done.stdout.strip()] if done.returncode == 0 else []


def write(out: Path, record: Record) -> None:
    """Put a record into a file whose other keys stay."""
    kept = json.loads(out.read_text()) if out.exists() else {}
    short = {**record, "functions": " ".join(record["functions"])}
    beside = out.with_suffix(".part")
    beside.write_text(json.dumps({**kept, "counts": short}, indent=1, ensure_ascii=False) + "\n")
    beside.replace(out)


def read(out: Path) -> Record:
    """The record of a file; an empty one of none."""
    record: Record = json.loads(out.read_text()).get("counts", {}) if out.exists() else {}
    return {**record, "functions": record["functions"].split()} if record else {}


def counted(seeds: Iterable[int], processes: int, out: Path, fresh: bool = False) -> Record:
    """The record of these seeds and of those in the file; written as it goes.

    Args:
        seeds: those that the file's record has are passed over.
        processes: how many work side by side.
        out: a JSON file, whose other keys stay.
        fresh: whether the file's record is dropped.
    """
    found = added({"commits": _commit()}, {} if fresh else read(out))
    known = {seed for first, last in found["seeds"] for seed in range(first, last + 1)}
    written = time.monotonic()
    for record in _records([seed for seed in seeds if seed not in known], processes):
        found = added(found, record)
        for fault in record["faults"]:
            print(json.dumps(fault, ensure_ascii=False), flush=True)
        if time.monotonic() - written > _EVERY:
            write(out, found)
            written = time.monotonic()
    write(out, found)
    return found

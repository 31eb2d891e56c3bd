"""Counts of many seeds, in processes side by side."""

import json
import multiprocessing
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from fuzz.generate import program
from fuzz.judge import METHODS, Verdict, judged, minimal

__all__ = ["counted"]

Record = dict[str, Any]


def _one(seed: int) -> Record:
    """The functions of one seed's network, what came of each method, and faults."""
    outcomes, faults, made = {}, [], program(seed)
    try:
        for verdict in judged(made):
            outcomes[verdict.method] = verdict.outcome
            if verdict.outcome == "fault":
                outcomes[verdict.method] = f"fault: {verdict.kind}"
                faults.append(_fault(seed, verdict))
    except Exception:  # of the judge itself: a fault like others, or one seed would end a run of thousands
        faults = [{"seed": seed, "method": "the judge", "kind": "exception", "found": traceback.format_exc()[-600:]}]
    return {"functions": made.functions, "outcomes": outcomes, "faults": faults}


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


def _records(seeds: range, processes: int) -> Iterator[Record]:
    """Records of seeds, in their order."""
    if processes == 1:
        _begin()
        yield from map(_one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _begin, maxtasksperchild=100) as pool:
        yield from pool.imap(_one, seeds)


def counted(seeds: range, processes: int) -> Record:
    """What came of these seeds, ``processes`` at a time; faults are printed as they come."""
    functions, faults = set[str](), list[Record]()
    outcomes = {method: Counter[str]() for method in METHODS}
    for record in _records(seeds, processes):
        functions |= {*record["functions"]}
        faults += record["faults"]
        for method, outcome in record["outcomes"].items():
            outcomes[method][outcome] += 1
        for fault in record["faults"]:
            print(json.dumps(fault, ensure_ascii=False), flush=True)
    return {
        "torch": torch.__version__,
        "seeds": [seeds.start, seeds.stop - 1],
        "functions": " ".join(sorted(functions)),
        "outcomes": {method: dict(sorted(found.items())) for method, found in outcomes.items()},
        "faults": faults,
    }

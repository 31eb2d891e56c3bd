"""Functions of fields that no one here had tried: how many build at the first try, and whether they are right.

A list in ``benchmarks/blind_lists/`` is committed before anything on it is tried.  Its first result is kept as
``first_try`` for good; later ones stand beside it as ``now``.  No list counts twice as blind.

    python benchmarks/blind.py first                # all of a list
    python benchmarks/blind.py first ricker weibull # some of its functions
    python benchmarks/blind.py --table              # the tables of docs/results/functions.md

Each function is built from f alone, with ``Accuracy(relative=True)``, which asks for what is checked here.  It has a
process of its own, and 60 seconds of one processor.  Then the op is
imported and called in float32 and in float64.  The truth is adaptive quadrature of f in mpmath, which shares no code
with the compiler.  A function is right if at all points

- the mean is off by at most 2e-6 max(1, |mean|);
- sigma is off by at most 1e-3 of itself, wherever it exceeds 1e-6 min(L sigma_x, range);
- partials are off by at most 1e-3 of the bound that Cauchy and Schwarz set for them at that point, and 1e-4 of the
  largest such bound for an f of that slope and range;

and the domain that its certificate states reaches |mean| = 30 and var = 100 at least.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import sympy

from momentgen.compiler.pipeline import compile_rule
from momentgen.errors import MomentgenError
from momentgen.rule import Accuracy, Parameter, Phi, Rule, S, phi, x

LISTS = Path(__file__).parent / "blind_lists"
RESULTS = Path(__file__).parent / "results" / "blind.json"
LIMIT, PATIENCE = 60.0, 2400.0  # seconds of a processor; on the clock
POINTS = 24
LEAST_MEAN, LEAST_VAR = 30.0, 100.0  # what a domain must reach
MEAN, SIGMA, WHERE, LOCAL, LARGEST = 2e-6, 1e-3, 1e-6, 1e-3, 1e-4
PARTIALS = ("dmean_dmu", "dmean_dvar", "dvar_dmu", "dvar_dvar")

Floats = npt.NDArray[np.float64]


# --- truth ---------------------------------------------------------------------------
class Truth:
    """The six outputs and E (f - mean)⁴ by quadrature in mpmath: panels are halved until two rules agree.

    Args:
        f: in x alone.
    """

    DIGITS, REACH, DEEPEST, AGREE = 30, 13, 70, 1e-9

    def __init__(self, f: sympy.Expr) -> None:
        known = {"S": lambda z: 1 / (1 + mpmath.exp(-z)), "Phi": mpmath.ncdf, "phi": mpmath.npdf}
        self.call = sympy.lambdify(x, f, [known, "mpmath"])
        numbers = [float(abs(c)) for c in f.atoms(sympy.Rational, sympy.Float, sympy.NumberSymbol)]
        self.centres = sorted({side * c for c in [0.0, *numbers] if c <= 1000 for side in (-1, 1)})
        self.nodes, self.weights = np.polynomial.legendre.leggauss(10)

    def f(self, at: Any) -> Any:
        """f at a number of mpmath; at a point where it is 0/0, its limit."""
        try:
            value = self.call(at)
            if mpmath.isfinite(value):
                return mpmath.re(value)
        except (ZeroDivisionError, ValueError):
            pass
        step = mpmath.mpf(10) ** (-self.DIGITS // 2)
        return (self.call(at - step) + self.call(at + step)) / 2

    def __call__(self, mean: float, var: float) -> dict[str, float]:
        with mpmath.workdps(self.DIGITS):
            return self._outputs(mpmath.mpf(mean), mpmath.mpf(var))

    def _outputs(self, mu: Any, v: Any) -> dict[str, float]:
        sigma = mpmath.sqrt(v)
        low, high = mu - self.REACH * sigma, mu + self.REACH * sigma
        cuts = {mu + sigma * k / 2 for k in range(-2 * self.REACH, 2 * self.REACH + 1)}
        for centre in self.centres:
            width = mpmath.mpf(10) ** -4
            while width < high - low:
                cuts |= {centre - width, centre + width}
                width *= 2
            cuts.add(mpmath.mpf(centre))
        edges = sorted(cut for cut in cuts if low <= cut <= high)
        here = self.f(mu)

        def sums(a: Any, b: Any) -> tuple[Floats, Floats]:
            half, middle = (b - a) / 2, (a + b) / 2
            places = [middle + half * node for node in self.nodes]
            d = np.array([float(self.f(at) - here) for at in places])
            z = np.array([float((at - mu) / sigma) for at in places])
            w = self.weights * float(half / sigma) * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            rows = np.array([d, d * d, d * z, d * (z * z - 1), d * d * z, d * d * (z * z - 1), d**3, d**4])
            return rows @ w, np.abs(rows) @ w

        panels = [(a, b, *sums(a, b)) for a, b in itertools.pairwise(edges)]
        size = np.sum([row[3] for row in panels], axis=0) + 1e-300
        # what rounding of f leaves of its differences: far in a tail these may be smaller
        noise = 10.0 ** (4 - self.DIGITS) * abs(float(here))
        of = noise * size[0]
        floor = np.array([noise, 2 * of, noise, 2 * noise, 2 * of, 4 * of, 3 * noise * size[1], 4 * noise * size[6]])
        enough = self.AGREE / 30 * size + floor
        total = np.zeros(8)
        stack = [(*panel, 0) for panel in panels]
        while stack:
            a, b, whole, _, depth = stack.pop()
            middle = (a + b) / 2
            left, right = sums(a, middle), sums(middle, b)
            both = left[0] + right[0]
            if depth == self.DEEPEST or np.all(np.abs(both - whole) <= enough):
                total += both
            else:
                stack += [(a, middle, *left, depth + 1), (middle, b, *right, depth + 1)]
        d, d2, dz, dh, d2z, d2h, d3, d4 = total.tolist()
        s, var = float(sigma), float(v)
        return {
            "mean": float(here + mpmath.mpf(d)),
            "var": d2 - d * d,
            "dmean_dmu": dz / s,
            "dmean_dvar": dh / (2 * var),
            "dvar_dmu": (d2z - 2 * d * dz) / s,
            "dvar_dvar": (d2h - 2 * d * dh) / (2 * var),
            "fourth": d4 - 4 * d * d3 + 6 * d * d * d2 - 3 * d**4,
        }


def _slope_and_range(truth: Truth, mean: float, var: float) -> tuple[float, float]:
    """The largest slope of f and its range within eight sigmas, and within 20 of 0 and of its constants."""
    sigma = math.sqrt(var)
    shape = np.sinh(np.linspace(-9, 9, 161)) / math.sinh(9)
    places = [mean + 8 * sigma * shape, mean + 8 * sigma * np.linspace(-1, 1, 81)]
    places = np.unique(np.concatenate([*places, *(centre + 20 * shape for centre in truth.centres)]))
    values = np.array([float(truth.f(mpmath.mpf(at))) for at in places])
    slopes = np.abs(np.diff(values) / np.diff(places))
    return float(slopes.max()), float(values.max() - values.min())


def _points(name: str, centres: Sequence[float]) -> list[tuple[float, float]]:
    """(mean, var), all of float32: half of them near what f depends on, half anywhere."""
    draw = random.Random(name)
    found = []
    for k in range(POINTS):
        sigma = 10 ** draw.uniform(-3, 2.5)
        near = draw.choice(centres) + sigma * draw.uniform(-4, 4)
        mean = near if k % 2 else draw.choice((-1, 1)) * 10 ** draw.uniform(-2, 2.5)
        found.append((float(np.float32(mean)), float(np.float32(sigma**2))))
    return found


# --- one function ----------------------------------------------------------------------
def _listed(which: str) -> dict[str, dict[str, Any]]:
    data = json.loads((LISTS / f"{which}.json").read_text(encoding="utf-8"))
    return {row["name"]: row for row in data["functions"]}


def _rule(row: Mapping[str, Any]) -> Rule:
    parameters = tuple(
        Parameter(name, default=default, low=low, high=high)
        for name, (default, low, high) in row.get("parameters", {}).items()
    )
    known = {"x": x, "S": S, "Phi": Phi, "phi": phi, **{p.name: p.symbol for p in parameters}}
    f = sympy.sympify(row["f"], locals=known)
    return Rule(row["name"], f=f, parameters=parameters, accuracy=Accuracy(relative=True), doc=row["source"])


def _seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measured(which: str, name: str) -> dict[str, Any]:
    """Build one function, compare it with the truth, and say what came of it."""
    row = _listed(which)[name]
    began = _seconds()
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(began + LIMIT), most))  # what comes after has no limit
    try:
        compiled = compile_rule(_rule(row))
    except MomentgenError as error:
        return {"seconds": round(_seconds() - began, 1), "refused": str(error).partition("\n")[0][:400]}
    seconds = round(_seconds() - began, 1)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / f"blind_{name}"
        package.mkdir()
        for file, text in compiled.files.items():
            (package / file).write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        op = getattr(importlib.import_module(package.name), name)
        certificate = json.loads((package / "exact.json").read_text(encoding="utf-8"))
        found = {"seconds": seconds, "way": certificate["method"].get("way", ""), "nan": certificate["domain"]["nan"]}
        found |= _compared(row, op)
    within = [found["reaches"], *(e <= 1 for of in found["errors"].values() for e in of.values())]
    return {**found, "right": all(within)}


def _compared(row: Mapping[str, Any], op: Callable[..., Any]) -> dict[str, Any]:
    """Errors over what is allowed, by dtype and kind, over all points; and the worst points."""
    import torch

    rule = _rule(row)
    settings = [{p.name: float(p.default or 0) for p in rule.parameters}]
    settings += [{p.name: float(p.low) for p in rule.parameters}] if rule.parameters else []
    errors: dict[str, dict[str, float]] = {}
    worst: dict[str, Any] = {}
    outside, reaches = 0, True
    for setting in settings:
        f = rule.f.subs({p.symbol: sympy.Rational(setting[p.name]) for p in rule.parameters})
        truth = Truth(f)
        points = _points(row["name"], truth.centres)
        exact = [truth(mean, var) for mean, var in points]
        shapes = [_slope_and_range(truth, mean, var) for mean, var in points]
        for dtype in (torch.float32, torch.float64):
            of = str(dtype).removeprefix("torch.")
            got = _called(op, points, setting, dtype)
            for k, ((mean, var), want, shape) in enumerate(zip(points, exact, shapes, strict=True)):
                values = {name: float(column[k]) for name, column in got.items()}
                if any(math.isnan(value) for value in values.values()):
                    outside += 1
                    reaches &= abs(mean) > LEAST_MEAN or var > LEAST_VAR
                    continue
                for kind, error in _errors(values, want, var, *shape).items():
                    if error > errors.setdefault(of, {}).get(kind, -1.0):
                        errors[of][kind] = float(f"{error:.3g}")
                        worst[f"{of} {kind}"] = [mean, var, setting]
    return {"reaches": bool(reaches), "outside": outside, "errors": errors, "worst": worst}


def _called(
    op: Callable[..., Any], points: Sequence[tuple[float, float]], setting: Mapping[str, float], dtype: Any
) -> dict[str, list[float]]:
    import torch

    columns = {}
    mean, var = (torch.tensor(column, dtype=dtype, requires_grad=True) for column in zip(*points, strict=True))
    results = op(mean, var, **setting)
    for output, value in zip(("mean", "var"), results, strict=True):
        grads = torch.autograd.grad(value.sum(), (mean, var), retain_graph=True)
        columns[output] = value.tolist()
        columns |= {f"d{output}_d{of}": grad.tolist() for of, grad in zip(("mu", "var"), grads, strict=True)}
    return columns


def _errors(
    got: Mapping[str, float], want: Mapping[str, float], var: float, slope: float, span: float
) -> dict[str, float]:
    s, own, fourth = math.sqrt(var), math.sqrt(max(want["var"], 0.0)), math.sqrt(max(want["fourth"], 0.0))
    most = min(slope * s, span)
    local = (own / s, own / s**2, fourth / s, fourth / var)
    largest = (most / s, most / var, most**2 / s, most**2 / var)
    allowed = [LOCAL * a + LARGEST * b + 1e-30 for a, b in zip(local, largest, strict=True)]
    partials = [abs(got[name] - want[name]) / limit for name, limit in zip(PARTIALS, allowed, strict=True)]
    found = {
        "mean": abs(got["mean"] - want["mean"]) / (MEAN * max(1.0, abs(want["mean"]))),
        "partials": max(partials),
    }
    if own > WHERE * most:
        found["sigma"] = abs(math.sqrt(max(got["var"], 0.0)) / own - 1) / SIGMA
    return found


# --- lists -----------------------------------------------------------------------------
def _run(which: str, name: str) -> dict[str, Any]:
    """One function in a process of its own."""
    command = [sys.executable, __file__, "--one", which, name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"seconds": round(time.monotonic() - began, 1), "refused": "no end within the time allowed"}
    if process.returncode == -signal.SIGXCPU:
        return {"seconds": LIMIT, "refused": f"more than {LIMIT:g} s of a processor"}
    if process.returncode:
        return {"seconds": round(time.monotonic() - began, 1), "crash": err.strip().rpartition("\n")[2][:400]}
    row: dict[str, Any] = json.loads(out.rpartition("\n{")[2] if not out.startswith("{") else out)
    return row


def _read() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def _works(row: Mapping[str, Any]) -> bool:
    return bool(row.get("right")) and row["seconds"] <= LIMIT


def rate(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """How many of some functions build in time and are right."""
    return f"{sum(map(_works, rows.values()))} of {len(rows)}"


def table() -> str:
    """The tables of the page, from the results."""
    lines = [
        "| list | fields | built at the first try | right at the first try | built again | right of these | "
        "seconds, median and most |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    results = _read()
    for which, runs in results.items():
        data = json.loads((LISTS / f"{which}.json").read_text(encoding="utf-8"))
        first, again = runs["first_try"], runs.get("now", {})
        built = sum("way" in row for row in first.values())
        seconds = [row["seconds"] for row in {**first, **again}.values() if "way" in row]
        shown = f"{median(seconds):.0f}, {max(seconds):.0f}" if seconds else ""
        count, now = (str(len(again)), rate(again)) if again else ("", "")
        lines.append(
            f"| {which} | {data['fields']} | {built} of {len(first)} | {rate(first)} | {count} | {now} | {shown} |"
        )
    for which, runs in results.items():
        lines += ["", f"### The {which} list", "", "| function | source | f | at first | now |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        for name, row in _listed(which).items():
            first = runs["first_try"].get(name, {})
            now = runs.get("now", {}).get(name, first)
            formula = row["f"].replace("|", "\\|")
            lines.append(f"| {name} | {row['source']} | `{formula}` | {_said(first)} | {_said(now)} |")
    return "\n".join(lines) + "\n"


def _said(row: Mapping[str, Any]) -> str:
    if "crash" in row:
        return "a crash"
    if "way" not in row:
        return "refused" if row else ""
    if _works(row):
        return f"right, {row['seconds']:.0f} s"
    if row["seconds"] > LIMIT:
        return f"too slow, {row['seconds']:.0f} s"
    if not row["reaches"]:
        return f"NaN for {row['nan']}"
    missed = [f"{kind} in {of}" for of, kinds in row["errors"].items() for kind, error in kinds.items() if error > 1]
    return f"built; off: {', '.join(missed)}"


def main() -> None:
    """Run a list, some of its functions, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("list", nargs="?", help="name of a list")
    parser.add_argument("functions", nargs="*", help="names of functions in it; all by default")
    parser.add_argument("--one", nargs=2, metavar=("LIST", "NAME"), help="one function, here; prints JSON")
    parser.add_argument("--table", action="store_true", help="print the tables of the page")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(*given.one)))
        return
    if given.table:
        print(table(), end="")
        return
    for name in given.functions or list(_listed(given.list)):
        row = _run(given.list, name)
        print(name, {**row, "worst": None}, flush=True)
        results = _read()  # another share of the list may run beside this one
        runs = results.setdefault(given.list, {"first_try": {}})
        if name not in runs["first_try"]:
            runs["first_try"][name] = row
        else:
            runs.setdefault("now", {})[name] = row
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

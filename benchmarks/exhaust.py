"""Built kernels over all 2^32 float32 means at variance 1: maxima that are no longer a sample's.

At one variance and setting of the parameters the six outputs are functions of the mean alone.  The reference is
piecewise: on each of some 1,600 pieces of the float32 line, a polynomial through rigorous values.  It is a screen: its
own error is measured, and the worst inputs that it points to are measured again by balls.  A variant takes a minute or
two.  The results go to ``rules/evidence/NAME.json``, from which the next build takes them into the certificates.

    python benchmarks/exhaust.py [--rules relu,abs] [--stride 16411]

A stride above 1 takes every so many bit patterns, and writes nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _common import console, results_table
from numpy.polynomial import chebyshev
from rich.progress import track

from momentgen.build.built import Built, CommittedKernel, read_built
from momentgen.commands.verify import stables_of
from momentgen.compiler.certify.evidence import ALL_INPUTS, Evidence, OutputEvidence, Run, read_evidence
from momentgen.compiler.certify.points import seed_of
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.measure.ulp import EDGE_LABELS, EDGES, is_normal, ulp_error, unit
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.compiler.toolchain.c_libraries import called, compiled
from momentgen.native.includes import whole
from momentgen.rule import Rule, load_rules
from momentgen.rule.files import evidence_path

ROOT = Path(__file__).parent.parent
NAMES = (*OUTPUTS, *PARTIALS)
#: inputs are taken by 2^15 consecutive bit patterns, of which there are 2^17
CHUNK, CHUNKS = 1 << 15, 1 << 17
_DEGREE = 11
_WIDEST = 5  # from 2^5 on every density is far below float32, and outputs are polynomials
_SHARE = 4  # pieces are 2^-4 wide or narrower between 2^-4 and 2^5, and binades elsewhere
_SAMPLE = 20_000  # means at which the reference is compared with balls
_TRUSTED = 0.01  # ulp that the reference may be off by
_SLICE = 256  # chunks between two reports of progress
_REMEASURED = 200  # inputs per output that are measured again by balls
_KEPT = 16  # inputs per output that the evidence keeps
_SUBNORMAL_CHUNKS = 256  # those of |mean| < 2^-126, of either sign


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", default="abs,heaviside,leaky_relu,relu,rrelu", help="comma-separated")
    parser.add_argument("--stride", type=int, default=1, help="take every so many bit patterns")
    arguments = parser.parse_args()
    rules = {rule.name: rule for rule in load_rules(ROOT / "rules")}
    table, over = results_table("rule", "variant", "goal", *NAMES), []
    for name in arguments.rules.split(","):
        file = evidence_path(ROOT / "rules" / f"{name}.py")
        for built, stable, run in runs(rules[name], arguments.stride):
            if run.inputs == ALL_INPUTS:
                evidence = updated(read_evidence(file, name), built.variant, run, stable.goal)
                part = file.with_suffix(".part")  # a run may be stopped at any time
                part.write_text(evidence.to_json(), encoding="utf-8")
                part.replace(file)
            errors = {output: found.ulp for output, found in run.outputs.items()}
            table.add_row(name, built.variant, f"{stable.goal:g}", *(f"{error:.3f}" for error in errors.values()))
            over += [f"{name} {built.variant} {output}" for output, error in errors.items() if error > stable.goal]
    console.print(table)
    if over:
        sys.exit(f"over the goal: {', '.join(over)}")


def runs(rule: Rule, stride: int) -> Iterator[tuple[Built, Stable, Run]]:
    """The own moments of a rule that are certified in ulp; they share one reference, as they share exact values."""
    variants = read_built(ROOT / "generated", rule.name)
    stables = stables_of(rule, variants)
    reference = Reference(stables["exact"], rule.defaults)
    if reference.error > _TRUSTED:
        sys.exit(f"{rule.name}: expected a reference within {_TRUSTED} ulp, got {reference.error:.2g}")
    for built in variants:
        if built.variant in rule.accuracy.ulp and built.way:
            yield (
                built,
                stables[built.variant],
                exhausted(built, stables[built.variant], rule.defaults, reference, stride),
            )


def updated(evidence: Evidence, variant: str, run: Run, goal: float) -> Evidence:
    """With a run added; it replaces those of another program or of the same setting."""
    worst = (pair for output in run.outputs.values() for pair in output.worst)
    missed = {*evidence.missed.get(variant, ()), *((mean, run.var) for mean, ulp in worst if ulp > goal)}
    same = [r for r in evidence.variants.get(variant, ()) if r.program == run.program]
    kept = [r for r in same if (r.setting, r.var) != (run.setting, run.var)]
    ordered = sorted([*kept, run], key=lambda r: sorted(r.setting.items()))
    return Evidence(
        evidence.rule,
        dict(sorted({**evidence.variants, variant: tuple(ordered)}.items())),
        dict(sorted({**evidence.missed, variant: tuple(sorted(missed))}.items())),
    )


class Reference:
    """The six outputs at a variance of 1 and one setting, as piecewise polynomials in the mean.

    Attributes:
        piece: which polynomial serves each chunk of bit patterns, -1 where the mean is infinite or NaN.
        middle, inverse: a piece is |z| <= 1 with z = (|mean| - middle)·inverse.
        coefficients: by piece, output and power of z.
        error: the largest error found, in ulp, over ``points`` finite means, half of them in the bulk.
    """

    def __init__(self, stable: Stable, setting: Mapping[str, float]) -> None:
        self.piece = np.full(CHUNKS, -1, np.int32)
        pieces: list[tuple[float, float, float]] = []  # middle, half a width, sign
        for sign in (0, 1):
            for field in range(255):  # the biased exponent
                # |mean| < 2^-126 is one piece; its chunks are those with field 0
                low, size = (0.0, 2.0**-126) if field == 0 else (2.0 ** (field - 127), 2.0 ** (field - 127))
                exponent = field - 127
                parts = 1 << min(max(exponent + _SHARE, 0), 8) if exponent < _WIDEST else 1
                for part in range(parts):
                    first = (sign << 16) + (field << 8) + part * (256 // parts)
                    self.piece[first : first + 256 // parts] = len(pieces)
                    half = size / parts / 2
                    pieces.append((low + (2 * part + 1) * half, half, -1.0 if sign else 1.0))
        self.middle, half_widths, signs = np.array(pieces).T.copy()
        self.inverse = 1 / half_widths
        nodes = chebyshev.chebpts1(_DEGREE + 1)
        # Nodes are float64: exact values do not care, and only means that the kernels see must be float32.
        means = signs[:, None] * (self.middle[:, None] + half_widths[:, None] * nodes)
        exact = stable.truth(means.ravel(), np.ones(means.size), setting)
        to_powers = _values_to_powers(nodes)
        self.coefficients = np.empty((len(pieces), len(NAMES), _DEGREE + 1))
        for k, name in enumerate(NAMES):
            self.coefficients[:, k] = exact[name].reshape(means.shape) @ to_powers.T
        self.error, self.points = self._measured(stable, setting)

    def __call__(self, mean: F32) -> dict[str, F64]:
        """The outputs at finite means, in float64."""
        piece = self.piece[mean.view(np.uint32) >> 15]
        z = (np.abs(mean.astype(np.float64)) - self.middle[piece]) * self.inverse[piece]
        values = self.coefficients[piece, :, _DEGREE]
        for power in range(_DEGREE - 1, -1, -1):
            values = values * z[:, None] + self.coefficients[piece, :, power]
        return dict(zip(NAMES, values.T, strict=True))

    def _measured(self, stable: Stable, setting: Mapping[str, float]) -> tuple[float, int]:
        rng = np.random.default_rng(seed_of("reference"))
        anywhere = rng.integers(0, 1 << 32, _SAMPLE // 2, dtype=np.uint32).view(np.float32)
        mean = np.concatenate([anywhere[np.isfinite(anywhere)], rng.uniform(-20, 20, _SAMPLE // 2).astype(np.float32)])
        truth, values = stable.truth(mean, np.ones_like(mean), setting), self(mean)
        largest = 0.0
        for name, exact in truth.items():
            normal = is_normal(exact)
            errors = np.abs(values[name][normal] - exact[normal]) / unit(exact[normal])
            largest = max(largest, float(errors.max(initial=0.0)))
        return largest, mean.size


def _values_to_powers(nodes: F64) -> F64:
    """The matrix from values at Chebyshev nodes to coefficients of powers."""
    count = nodes.size
    to_chebyshev = 2 / count * chebyshev.chebvander(nodes, count - 1).T
    to_chebyshev[0] /= 2
    powers = np.zeros((count, count))
    for k in range(count):
        powers[: k + 1, k] = chebyshev.cheb2poly(np.eye(count)[k])
    return np.asarray(powers @ to_chebyshev)


@dataclass(frozen=True)
class Tally:
    """What a sweep found; rows are chunks, columns outputs.

    Attributes:
        worst: largest error in ulp where the exact value is a normal number.
        where: bits of the mean that has it.
        below: largest absolute error where the exact value is below the normal range.
        counts: inputs in each bin of the histogram over ``EDGES``, by output.
        inputs: how many means were run.
    """

    worst: F32
    where: npt.NDArray[np.uint32]
    below: F64
    counts: npt.NDArray[np.int64]
    inputs: int


class Sweep:
    """The element functions of a built variant, run over float32 means at variance 1."""

    def __init__(self, built: Built, params: list[float], reference: Reference, stride: int = 1) -> None:
        names = {
            "CHUNK": CHUNK,
            "DEGREE": _DEGREE,
            "EDGE_COUNT": len(EDGES),
            "EDGE_LIST": ", ".join(f"{edge}f" for edge in EDGES),
            "FORWARD": f"{built.rule}_{built.variant}_forward_element",
            "BACKWARD": f"{built.rule}_{built.variant}_backward_element",
            "PARAMETERS": " ".join(f"const float p{i} = params[{i}];" for i in range(len(params))) or "(void)params;",
            "ARGUMENTS": " ".join(f"p{i}," for i in range(len(params))),
        }
        defined = "".join(f"#define {name} {value}\n" for name, value in names.items())
        driver = Path(__file__).with_suffix(".c").read_text(encoding="utf-8")
        self._library = compiled(f"{whole(built.source)}\n{defined}{driver}")
        self._library.numbers_from_nan.restype = ctypes.c_int64
        self._params = np.asarray([*params, 0.0], np.float64).astype(np.float32)
        self._reference, self._stride = reference, stride

    def __call__(self, chunks: npt.NDArray[np.uint32]) -> Tally:
        """Run the means of the chunks given, all of them finite."""
        n, k = chunks.size, len(NAMES)
        worst, where = np.zeros((n, k), np.float32), np.zeros((n, k), np.uint32)
        below, above = np.zeros((n, k)), np.zeros((n, k, len(EDGES)), np.int64)
        normal = np.zeros((n, k), np.int64)
        r = self._reference
        tables = (r.piece, r.middle, r.inverse, r.coefficients, worst, where, below, above, normal)
        chunks = np.ascontiguousarray(chunks, np.uint32)
        called(self._library.sweep, n, chunks, *self._at(), *tables)
        over = above.sum(axis=0)
        counts = -np.diff(np.concatenate([normal.sum(axis=0)[:, None], over, np.zeros((k, 1), np.int64)], axis=1))
        begin = chunks.astype(np.int64) * CHUNK
        inputs = int((-(-(begin + CHUNK) // self._stride) - -(-begin // self._stride)).sum())
        return Tally(worst, where, below, counts, inputs)

    def numbers_from_nan(self) -> tuple[int, int]:
        """How many NaN means give a number in any output, and how many NaN means were run."""
        chunks = np.flatnonzero(self._reference.piece < 0).astype(np.uint32)
        seen = ctypes.c_int64(0)
        numbers = called(self._library.numbers_from_nan, chunks.size, chunks, *self._at(), ctypes.byref(seen))
        return int(numbers), seen.value

    def _at(self) -> tuple[object, ...]:
        """Stride, variance and parameters."""
        return ctypes.c_uint32(self._stride), ctypes.c_float(1.0), self._params


def exhausted(built: Built, stable: Stable, setting: Mapping[str, float], reference: Reference, stride: int) -> Run:
    """One variant over every ``stride``-th float32 mean at variance 1, all six outputs measured."""
    name, kernel = f"{built.rule} {built.variant}", CommittedKernel(built, setting)
    sweep = Sweep(built, kernel.params, reference, stride)
    numbers, nans = sweep.numbers_from_nan()
    if numbers:
        sys.exit(f"{name}: expected NaN of {nans} NaN means, got a number of {numbers}")
    finite = np.flatnonzero(reference.piece >= 0).astype(np.uint32)
    subnormal = (finite & 0xFFFF) < _SUBNORMAL_CHUNKS
    tallies: dict[bool, list[Tally]] = {False: [], True: []}
    slices = [
        (small, chunks[start : start + _SLICE])
        for small, chunks in ((True, finite[subnormal]), (False, finite[~subnormal]))
        for start in range(0, chunks.size, _SLICE)
    ]
    for small, chunks in track(slices, name, console=console, transient=True):
        tallies[small].append(sweep(chunks))
    infinities = np.array([-np.inf, np.inf], np.float32)
    limits = kernel(infinities, np.ones_like(infinities))
    stated = re.search(r"^// program +(\w+)$", built.source, re.MULTILINE)
    if stated is None:
        sys.exit(f"{name}: expected a C file that states the digest of its programs; build the rule again")
    done = sum(tally.inputs for of_size in tallies.values() for tally in of_size)
    return Run(
        program=stated[1],
        setting=dict(setting),
        var=1.0,
        inputs=nans + done + sum(int(bits) % stride == 0 for bits in infinities.view(np.uint32)),
        nan_inputs=nans,
        reference_error_ulp=float(f"{reference.error:.3g}"),
        reference_points=reference.points,
        limits={str(x): {n: str(limits[n][i]) for n in NAMES} for i, x in enumerate(infinities)},
        outputs={output: _measured(name, stable, setting, kernel, output, tallies) for output in NAMES},
    )


def _measured(
    name: str,
    stable: Stable,
    setting: Mapping[str, float],
    kernel: CommittedKernel,
    output: str,
    tallies: Mapping[bool, list[Tally]],
) -> OutputEvidence:
    """One output: the worst inputs of the sweep, and a mean of 0, measured by balls."""
    k = NAMES.index(output)
    worst = np.concatenate([t.worst[:, k] for t in tallies[False]])
    where = np.concatenate([t.where[:, k] for t in tallies[False]])
    chosen = np.argsort(-worst, kind="stable")[:_REMEASURED]
    mean = np.append(where[chosen].view(np.float32), np.float32(0.0))
    exact = stable.truth(mean, np.ones_like(mean), setting)[output]
    ulp = ulp_error(kernel(mean, np.ones_like(mean))[output], exact)
    order = np.argsort(-ulp, kind="stable")
    first = order[0]
    if not np.isfinite(ulp[first]):
        sys.exit(f"{name}: expected a finite {output} at mean = {mean[first]!r}, where it is {exact[first]:.9g}")
    counts = sum((t.counts[k] for t in tallies[False]), np.zeros(len(EDGE_LABELS), np.int64))
    below = max(float(t.below[:, k].max()) for t in tallies[False])
    # An error of 0 may mean that the exact value is no normal number: such an input is not worth keeping.
    kept = [i for i in order[:_KEPT] if ulp[i] > 0]
    return OutputEvidence(
        ulp=float(ulp[first]),
        mean=float(mean[first]),
        exact=float(exact[first]),
        histogram_ulp=dict(zip(EDGE_LABELS, map(int, counts), strict=True)),
        absolute_below_normal=float(f"{below:.4g}"),
        ulp_subnormal_mean=float(f"{max(float(t.worst[:, k].max()) for t in tallies[True]):.4g}"),
        worst=tuple((float(mean[i]), float(f"{ulp[i]:.6g}")) for i in kept),
    )


if __name__ == "__main__":
    main()

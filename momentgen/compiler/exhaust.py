"""The univariate cores over all 2^32 float32 means: maxima that are no longer a sample's.

At variance 1 an op is a function of the mean alone, and its C can be run on every float32 there is.  The sweep
(:mod:`momentgen.compiler.certify.sweep`) compares with piecewise polynomials through rigorous values; what is reported
as largest error is measured again by balls, and the polynomials' own error by a sample.  It takes about a minute a
variant, so a build does not do it: ``momentgen exhaust`` does, and leaves evidence that builds read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from momentgen.compiler.certify.evidence import OutputEvidence, Run, stated_digest
from momentgen.compiler.certify.sweep import Reference, Sweep, Tally
from momentgen.compiler.ir.stable import OUTPUTS, PARTIALS, Stable
from momentgen.compiler.measure.ulp import EDGE_LABELS, ulp_error
from momentgen.compiler.native import NativeKernel
from momentgen.compiler.toolchain.arrays import F32
from momentgen.compiler.toolchain.float32 import split_float32
from momentgen.errors import BuildError

_NAMES = (*OUTPUTS, *PARTIALS)
_SLICE = 256  # chunks between two reports of progress
_REMEASURED = 200  # inputs an output that are measured again by balls
_KEPT = 16  # inputs an output that the evidence keeps
_SUBNORMAL_CHUNKS = 256  # those of |mean| < 2^-126, of either sign


def exhaust(
    rule: str,
    stable: Stable,
    source: str,
    setting: Mapping[str, float],
    *,
    stride: int = 1,
    reference: Reference | None = None,
    progress: Callable[[int], None] = lambda inputs: None,
) -> Run:
    """Run one variant's emitted C over every float32 mean at variance 1, and measure all six outputs.

    Args:
        rule: its name.
        stable: the variant, for exact values.
        source: its C file.
        setting: parameter name -> value.
        stride: take every how many bit patterns; 1 is all of them.
        reference: made before for the same rule and setting, to share it among variants.
        progress: told how many of the 2^32 / stride inputs have been run.

    Raises:
        BuildError: if a NaN mean gives a number, or an output is not finite where its exact value is a normal
            number; and if there is no C compiler.
        MomentgenError: if the source does not say of which programs it was made.
    """
    name = f"{rule}_{stable.variant}"
    reference = reference or Reference(stable, setting)
    params = [word for value in setting.values() for word in split_float32(value)] + list(stable.scalars(setting))
    sweep = Sweep(source, name, params, reference, stride)
    numbers, nans = sweep.numbers_from_nan()
    if numbers:
        raise BuildError(rule, "certify", f"variant {stable.variant}: {numbers} of {nans} NaN means give a number")
    finite = np.flatnonzero(reference.piece >= 0).astype(np.uint32)
    subnormal = (finite & 0xFFFF) < _SUBNORMAL_CHUNKS
    done = nans
    progress(done)
    tallies: dict[bool, list[Tally]] = {False: [], True: []}
    for is_subnormal in (True, False):
        chunks = finite[subnormal == is_subnormal]
        for start in range(0, chunks.size, _SLICE):
            tally = sweep(chunks[start : start + _SLICE])
            tallies[is_subnormal].append(tally)
            done += tally.inputs
            progress(done)
    kernel = _Kernel(sweep.source, name, params)
    infinities = np.array([-np.inf, np.inf], np.float32)
    limits = kernel(infinities)
    outputs = {name: _measured(rule, stable, setting, kernel, name, tallies) for name in _NAMES}
    return Run(
        program=stated_digest(source),
        setting=dict(setting),
        var=1.0,
        inputs=done + sum(int(bits) % stride == 0 for bits in infinities.view(np.uint32)),
        nan_inputs=nans,
        reference_error_ulp=float(f"{reference.error:.3g}"),
        reference_points=reference.points,
        limits={str(x): {n: str(limits[n][i]) for n in _NAMES} for i, x in enumerate(infinities)},
        outputs=outputs,
    )


class _Kernel:
    """The six outputs by the exported kernels: what a user calls, to confirm what the sweep inlined."""

    def __init__(self, source: str, name: str, params: list[float]) -> None:
        self.params = params
        self.forward = NativeKernel(source, f"{name}_forward", 2, len(params), 2)
        self.backward = NativeKernel(source, f"{name}_backward", 4, len(params), 2)

    def __call__(self, mean: F32) -> dict[str, F32]:
        one, zero = np.ones_like(mean), np.zeros_like(mean)
        values = [*self.forward(mean, one, params=self.params)]
        values += self.backward(mean, one, one, zero, params=self.params)
        values += self.backward(mean, one, zero, one, params=self.params)
        return dict(zip(_NAMES, values, strict=True))


def _measured(
    rule: str,
    stable: Stable,
    setting: Mapping[str, float],
    kernel: _Kernel,
    output: str,
    tallies: Mapping[bool, list[Tally]],
) -> OutputEvidence:
    """One output: the worst inputs of the sweep, and a mean of 0, measured by balls."""
    k = _NAMES.index(output)
    worst = np.concatenate([t.worst[:, k] for t in tallies[False]])
    where = np.concatenate([t.where[:, k] for t in tallies[False]])
    chosen = np.argsort(-worst, kind="stable")[:_REMEASURED]
    mean = np.append(where[chosen].view(np.float32), np.float32(0.0))
    exact = stable.truth(mean, np.ones_like(mean), setting)[output]
    ulp = ulp_error(kernel(mean)[output], exact)
    order = np.argsort(-ulp, kind="stable")
    first = order[0]
    if not np.isfinite(ulp[first]):
        at = f"mean = {mean[first]!r}, var = 1, where it is {exact[first]:.9g}"
        raise BuildError(rule, "certify", f"variant {stable.variant}: expected a finite {output} at {at}")
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

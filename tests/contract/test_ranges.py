"""Every op anywhere in the range of float: right within its tolerance, the largest number of the right sign, or NaN.

Beyond the range of the dtype a result is its largest number, of the sign of the exact one; NaN is an answer only where
the certificate says so.  Never a plausible wrong number, neither in outputs nor in partials.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from contract.certified import OPS, Subject, computed, subject
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from momentgen.compiler.ir.stable import OUTPUTS
from momentgen.rule.symbols import mu, v, x
from momentgen.runtime import Op

F64 = npt.NDArray[np.float64]
Points = tuple[F64, ...]
LARGEST = {dtype: torch.finfo(dtype).max for dtype in (torch.float32, torch.float64)}
_MAX = LARGEST[torch.float32]
_TURNED = 1e6  # angles are reduced up to there
_ROOM = 1.05  # a certificate bounds what was sampled; a point may be worse by a little
_TINY = 2.0**-127  # of a variance: below it 1/v counts as 2^127 in the partials of an f that jumps
_FORMS = [pytest.param(torch.float32, id="float32"), pytest.param(torch.float64, id="float64")]
_SMALL = ("atan", "softsign", "pseudo_huber")  # whose exact values take long: some points in the fast suite
each_op = pytest.mark.parametrize("name", sorted(OPS))


def _float(low: int, high: int) -> st.SearchStrategy[float]:
    """A float32 number of a binary exponent between two, evenly over its logarithm."""
    mantissa = st.floats(1, 2, exclude_max=True, width=32)
    return st.builds(lambda m, k: float(np.float32(np.ldexp(m, k))), mantissa, st.integers(low, high))


_EDGES = (0.0, 2.0**-149, 2.0**-127, 2.0**-126, 1e-30, 1e-10, 0.5, 1.0, 6.0, 88.0, 1e4, 3e6, 1e15, 1e30, _MAX)
_SIZES = st.one_of(st.sampled_from(_EDGES), _float(-149, 127), _float(-10, 8))
_MEANS = st.builds(lambda size, sign: size * sign, _SIZES, st.sampled_from((-1.0, 1.0)))
_POINTS = st.tuples(_MEANS, _SIZES, _MEANS, _SIZES, st.sampled_from((-0.999, -0.5, 0.0, 0.5, 0.999)))


def _inputs(op: Op, rows: Sequence[Sequence[float]]) -> Points:
    """Of (mean, var, mean, var, correlation) what the op takes."""
    columns = [np.array(column, np.float32).astype(np.float64) for column in zip(*rows, strict=True)]
    if len(op.input_names) == 5:
        covariance = columns[4] * np.sqrt(columns[1]) * np.sqrt(columns[3])
        rounded = covariance.astype(np.float32)
        # Of the smallest numbers rounding makes two values of one: closer to 0, as the certificates' domain has it.
        single = rounded.astype(np.float64) ** 2 >= columns[1] * columns[3]  # exact, of float32 numbers
        rounded = np.where(single, np.nextafter(rounded, np.float32(0)), rounded)
        columns[4] = rounded.astype(np.float64)
    return tuple(columns[: len(op.input_names)])


def _lost(op: Op, points: Points) -> F64:
    """Where the certificate says that the answer is NaN."""
    where = op.certificate().domain["nan"]
    if where == "nowhere":
        return np.zeros(points[0].shape, bool)
    assert where == f"|mean| > {_TURNED:g}", f"{op.name}: {where} is not known here"
    return np.abs(points[0]) > _TURNED


def _check(name: str, points: Points, dtype: torch.dtype) -> None:
    op, of = OPS[name], subject(name)
    got, largest, lost = computed(op, points, dtype), LARGEST[dtype], _lost(op, points)
    for output, values in got.items():
        assert not np.isinf(values).any(), _told(name, output, points, values, values, np.isinf(values))
        assert np.isnan(values[lost]).all(), f"{name} {output}: a number beyond its domain"
        wrong = np.isnan(values) & ~lost
        assert not wrong.any(), _told(name, output, points, values, values, wrong)
    positive = np.all([v > 0 for v in points[1::2]], axis=0) & ~lost
    _check_at_variance_0(name, of, points, got, ~positive & ~lost)
    if not positive.any():
        return
    at = tuple(p[positive] for p in points)
    exact = of.truth(*at)
    for output, every in got.items():
        values, want = every[positive], np.asarray(exact[output])
        beyond = np.abs(want) > largest
        saturated = values == np.sign(want) * largest
        with np.errstate(all="ignore"):
            held = np.clip(want, -_MAX, _MAX)
            errors = of.error(output, np.clip(values, -_MAX, _MAX), held, *at)
            # Float64 holds more than the measures of float32 do.
            wide = (np.abs(want) > _MAX) & ~beyond
            errors = np.where(wide, np.abs(values / want - 1) / 1e-4, errors)
            outside = np.any([(v > 0) & (v < _TINY) for v in at[1:4:2]], axis=0)
            if dtype == torch.float32 and output in OUTPUTS:
                # Below the certified variances, which have few digits themselves, some are lost on the way.
                errors = np.where(outside & (np.abs(values / want - 1) <= 1e-4), 0.0, errors)
            if of.jumps and output not in OUTPUTS:
                capped = outside & (np.abs(values) <= np.abs(held)) & (values * want >= 0)
                errors = np.where(capped, 0.0, errors)
        right = np.where(beyond, saturated | (errors <= _ROOM), errors <= _ROOM)
        assert right.all(), _told(name, output, at, values, want, ~right)


def _check_at_variance_0(name: str, of: Subject, points: Points, got: dict[str, F64], here: F64) -> None:
    """f at the mean, and 0; partials are finite by convention."""
    if len(points) != 2 or not here.any():
        return
    mean, own = None, of.rule.conditional_var
    if of.rule.noise is not None:  # closed forms, which have a variance of their own at v = 0
        mean, own = (form.subs({v: 0, mu: x}) for form in (of.rule.mean, of.rule.var))
    if own is not None:
        given = np.clip(of.at_point(points[0][here], of=own), 0, _MAX)
        wrong = np.abs(np.clip(got["var"][here], 0, _MAX) - given) > 1e-6 * np.maximum(1.0, given)
        assert not wrong.any(), _told(name, "var", tuple(p[here] for p in points), got["var"][here], given, wrong)
    else:
        assert (got["var"][here] == (0 if not of.rule.bernoulli else got["var"][here])).all(), name
    want = of.at_point(points[0][here], of=mean)
    held, at = np.clip(want, -_MAX, _MAX), (points[0][here], np.full(here.sum(), 2.0**-149))
    errors = of.error("mean", got["mean"][here], held, *at)
    beyond = np.abs(want) > _MAX
    right = (errors <= _ROOM) | (beyond & (np.sign(got["mean"][here]) == np.sign(want)))
    assert right.all(), _told(name, "mean", at, got["mean"][here], want, ~right)


def _told(name: str, output: str, points: Points, values: F64, want: F64, wrong: F64) -> str:
    i = int(np.flatnonzero(wrong)[0])
    at = ", ".join(repr(float(p[i])) for p in points)
    return f"{name} {output} at ({at}): {values[i]!r}, expected {want[i]!r}"


@each_op
@settings(max_examples=2, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(_POINTS, min_size=3, max_size=3))
def test_outputs_and_partials_are_right_or_the_largest_number_or_nan_where_the_certificate_says(
    name: str, rows: list[tuple[float, ...]]
) -> None:
    rows = rows[:1] if name in _SMALL else rows
    points = _inputs(OPS[name], rows)
    for dtype in (torch.float32, torch.float64):
        _check(name, points, dtype)


@each_op
def test_a_certain_input_gives_f_and_no_variance(name: str) -> None:
    means = [-_MAX, -1e4, -88.0, -3.0, -0.5, -1e-20, 0.0, 2.0**-149, 1e-20, 0.5, 1.0, 6.0, 88.0, 1e15, _MAX]
    points = _inputs(OPS[name], [(mean, 0.0, -mean, 0.0, 0.0) for mean in means])
    for dtype in (torch.float32, torch.float64):
        _check(name, points, dtype)


@each_op
@pytest.mark.parametrize("dtype", _FORMS)
@pytest.mark.slow
def test_the_same_on_a_grid_over_all_of_float(name: str, dtype: torch.dtype) -> None:
    means = np.array([-s for s in _EDGES[1:]] + [*_EDGES, 1.4, -1.4, 20.0, -20.0, 50.0, -50.0])
    variances = np.array([*_EDGES, 1e-20, 1e-4, 0.01, 0.25, 10.0, 100.0, 1e3])
    rng, count = np.random.default_rng(7), 1500
    mean, var = (axis.ravel() for axis in np.meshgrid(means, variances))
    second = rng.permutation(mean), rng.permutation(var), rng.choice((-0.999, 0.0, 0.999), mean.size)
    spread = np.exp2(rng.uniform(-149, 128, (4, count)))
    signs = rng.choice((-1.0, 1.0), (2, count))
    random = (signs[0] * spread[0], spread[1], signs[1] * spread[2], spread[3], np.zeros(count))
    rows = np.concatenate([np.stack([mean, var, *second]), np.stack(random)], axis=1).T.clip(-_MAX, _MAX)
    if name in _SMALL:
        rows = rows[:: len(rows) // 300]
    _check(name, _inputs(OPS[name], rows.tolist()), dtype)


@pytest.mark.parametrize("dtype", _FORMS)
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_a_sine_beyond_its_domain_is_nan_in_outputs_and_gradients(name: str, dtype: torch.dtype) -> None:
    far = (np.array([1.01e6, -3e6, 1e15, _MAX]), np.array([1.0, 0.0, 1e-4, 1e30]))
    for output, values in computed(OPS[name], far, dtype).items():
        assert np.isnan(values).all(), output


def test_an_exponential_beyond_range_has_gradients_that_are_numbers() -> None:
    """exp(0., 2000.) in float64: e^1000 is the largest number, and its variance too."""
    for output, values in computed(OPS["exp"], (np.zeros(1), np.full(1, 2000.0)), torch.float64).items():
        assert values[0] == LARGEST[torch.float64], output


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_variant_gives_numbers_and_no_negative_variance(name: str) -> None:
    op = OPS[name]
    sizes = [-s for s in _EDGES[1:]] + list(_EDGES)
    mean, var = (axis.ravel() for axis in np.meshgrid(sizes, _EDGES))
    rows = np.stack([mean, var, mean[::-1], var[::-1], np.zeros_like(mean)], axis=1)
    points = _inputs(op, rows.tolist())
    lost = _lost(op, points)
    for variant in op.variants:
        for dtype in (torch.float32, torch.float64):
            leaves = [torch.from_numpy(p[~lost]).to(dtype).requires_grad_() for p in points]
            found = op(*leaves, variant=variant)
            assert (found.var >= 0).all(), (variant, dtype)
            for moment in tuple(found):
                assert torch.isfinite(moment).all(), (variant, dtype)
                for gradient in torch.autograd.grad(moment.sum(), leaves, retain_graph=True):
                    assert torch.isfinite(gradient).all(), (variant, dtype)

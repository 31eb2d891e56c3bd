r"""Functions whose moments are elementary: sums of x^k e^(b x), x^k sin(b x), x^k cos(b x), as x + sin(x)², x e^x.

One term has a form of its own:

- polynomial: mean = Σ v^j/(2^j j!) f^(2j)(mu), V = Σ_{k>=1} v^k/k! P_k² with P_k = E f^(k): every term is positive;
- exp: mean = a e^(b mu + b² v/2) + c, V = a² e^(2 b mu + 2 b² v) (1 - e^(-b² v));
- sin, cos: mean = a e^(-b² v/2) sin(b mu) + c, V = a²/2 (1 - e^(-b² v)) (1 ± e^(-b² v) cos(2 b mu)).

Sums of them have the closed forms of ``exponentials`` from a variance v* on, and the series of polynomials below it,
cut off; v* is the lowest of a few at which no closed form loses what single floats have to spare.

Angles are reduced up to |b mu| = 1e6, where float32 is still 0.06 apart; beyond, all outputs are NaN.  Exponentials are
measured up to there as well, but for a rate b that is a power of two: further out b mu + b² v/2, where its parts
cancel, has lost its last digits, and outputs are NaN there.  What is beyond the range of float32, or of float64 in the
PyTorch form, is the largest number of the right sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from momentgen.compiler.derive import Derivation
from momentgen.compiler.exact import ClosedFormTruth
from momentgen.compiler.fit import Polynomial
from momentgen.compiler.function.activation import Activation
from momentgen.compiler.ir.graph import Graph, Real
from momentgen.compiler.ir.stable import OUTPUTS, Stable
from momentgen.compiler.measure.moments import MEAN, Inside, MomentsMeasure, measure_for
from momentgen.compiler.strategies.elementary.entire_graph import TURNED, Edge, Writer
from momentgen.compiler.strategies.elementary.entire_measure import RelativeMeasure, TermsMeasure
from momentgen.compiler.strategies.elementary.entire_sums import Closed, SumWriter
from momentgen.compiler.strategies.elementary.exponentials import Moment, Terms, exponential_terms
from momentgen.compiler.strategies.kit import like
from momentgen.compiler.strategies.settled import closed_form_truth
from momentgen.compiler.strategies.tolerated import four_graphs
from momentgen.compiler.toolchain.arrays import F32, F64
from momentgen.errors import BuildError
from momentgen.rule.symbols import x

_SPREAD = ("var", "dvar_dmu", "dvar_dvar")
_PARTS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of 1/b², b the largest rate: variances at which the series may end
_MOST = 20  # terms of it


# --- recognition -----------------------------------------------------------------
def _parts(expr: sp.Expr) -> tuple[str, sp.Expr, sp.Expr, sp.Expr] | None:
    """kind, a, b, c with f = a·kind(b x) + c; None for other functions."""
    c, rest = sp.expand(expr).as_independent(x, as_Add=True)
    a, inner = rest.as_independent(x, as_Add=False)
    if not isinstance(inner, (sp.exp, sp.sin, sp.cos)):
        return None
    b = sp.cancel(inner.args[0] / x)
    return None if b.has(x) else (type(inner).__name__, a, b, c)


def _sum(f: sp.Expr) -> Terms | None:
    """The terms of f; None for what has a form of its own (one term and a constant), and for other functions."""
    if _parts(f) is not None:
        return None
    terms = exponential_terms(f)
    if terms is None or (f.is_polynomial(x) and {n for _, n in terms.coefficients if n} in ({1}, {2})):
        return None
    return terms


def applies(derivation: Derivation) -> bool:
    """Whether f is such a function, without parameters, of a normal input."""
    rule = derivation.rule
    pieces = tuple(derivation.pieces)
    if rule.input != "normal" or rule.parameters or derivation.mean is None or len(pieces) != 1:
        return False
    f = pieces[0].expr
    return bool(f.has(x) and (f.is_polynomial(x) or _parts(f) is not None or _sum(f) is not None))


# --- sums: what they are measured by, and where the series ends --------------------
def _steady(terms: Terms) -> bool:
    """Whether f has a Lipschitz constant: a line, and sines and cosines."""
    return all(n <= 1 if b == 0 else n == 0 and sp.re(b) == 0 for b, n in terms.coefficients)


def _steady_measure(derivation: Derivation, terms: Terms, truth: ClosedFormTruth) -> MomentsMeasure:
    """The tolerance of all activations: L and the range found on a grid, which understates them by 1e-5 at most."""
    f = next(iter(derivation.pieces)).expr
    rates = [abs(complex(sp.N(b))) for b in terms.rates if b != 0]
    at = np.arange(-60 / min(rates), 60 / min(rates), 0.005 / max(rates))
    values, slopes = (np.broadcast_to(sp.lambdify(x, e, "numpy")(at), at.shape) for e in (f, sp.diff(f, x)))
    span = math.inf if any(n for _, n in terms.coefficients) else float(np.ptp(values))
    activation = Activation(
        derivation.rule.name,
        derivation.pieces,
        left=None,
        right=None,
        length=1 / min(rates),
        centre=0.0,
        reach=math.inf,
        lipschitz=float(np.abs(slopes).max()),
        span=span,
        bend=0.0,
        jumps=(),
    )

    def reference(mean: F32, var: F32, params: Mapping[str, float]) -> dict[str, F64]:
        exact = truth(mean, var, params)  # infinite where angles are not reduced
        return {name: np.where(np.isfinite(values), values, 0.0) for name, values in exact.items()}

    return measure_for(activation, reference)


def _split(terms: Terms, allowed: Callable[[str, F64, F64, F64], F64], name: str) -> tuple[Any, int]:
    """The variance below which the series serves, and how many terms that takes; measured at means around 0.

    A closed form may lose what makes single floats miss a third of the tolerance; the series may miss a fiftieth of it.

    Raises:
        BuildError: if the series has not come so near by its twentieth term.
    """
    rate = max(abs(complex(sp.N(b))) for b in terms.rates)
    means = [mpmath.mpf(k) / 8 / rate for k in range(-48, 49)]
    closed = Closed.of(terms, mpmath.mpf(1), _MOST, True)
    for part in _PARTS:
        below = mpmath.mpf(part) / mpmath.mpf(float(rate**2))
        at, var = np.array(means, dtype=np.float64), np.full(len(means), float(below))
        limits: dict[str, F64] = {}
        lost = 0.0
        with mpmath.workdps(40):
            for output in _SPREAD:
                summands = [closed.outputs[output].terms_at(mean, below) for mean in means]
                exact = np.array([float(mpmath.re(mpmath.fsum(row))) for row in summands])
                size = np.array([float(mpmath.fsum(map(abs, row))) for row in summands])
                limits[output] = allowed(output, exact, at, var)
                lost = max(lost, float((size * 2.0**-23 / limits[output]).max()))
        if lost <= 1 / 3:
            break
    with mpmath.workdps(40):
        rows = [[moment.at(mean, below) for moment in closed.series] for mean in means]
        want = {output: [closed.outputs[output].at(mean, below) for mean in means] for output in _SPREAD}
        for count in range(1, _MOST + 1):
            missed = max(
                float(abs(got - exact)) / limit
                for output in _SPREAD
                for got, exact, limit in zip(
                    (_series(row, below, count)[output] for row in rows), want[output], limits[output], strict=True
                )
            )
            if missed <= 1 / 50:
                return below, count
    raise BuildError(name, "strategies", f"the variance's series misses {missed:.2g} of the tolerance at v = {below}")


def _series(means: list[Any], v: Any, count: int) -> dict[str, Any]:
    """The variance and its partials by the series, in the current mpmath precision."""
    weights = [v**k / mpmath.factorial(k) for k in range(count + 1)]
    return {
        "var": mpmath.fsum(weights[k] * means[k] ** 2 for k in range(1, count + 1)),
        "dvar_dmu": 2 * mpmath.fsum(weights[k] * means[k] * means[k + 1] for k in range(1, count + 1)),
        "dvar_dvar": mpmath.fsum(
            weights[k] * (means[k + 1] ** 2 + (means[k] * means[k + 2] if k else 0)) for k in range(count + 1)
        ),
    }


# --- graphs ----------------------------------------------------------------------
def _graphs(
    edge: Edge, write: Callable[[Writer, tuple[str, ...]], dict[str, Real]]
) -> tuple[dict[str, Any], list[Polynomial]]:
    """The four graphs, and the polynomials fitted for those of float32."""

    def build(outputs: tuple[str, ...], float64: bool) -> tuple[Graph, Iterable[Polynomial]]:
        writer = Writer(Graph(("mean", "var")), float64, edge)
        values = write(writer, outputs)
        for output in outputs:
            value = writer.finite(values[output])
            writer.g.output(output, like(value, writer.mu, writer.v) if output in OUTPUTS else value)
        return writer.g, writer.fits

    return four_graphs(build)


def _one(f: sp.Expr, writer: Writer) -> dict[str, Real]:
    """One term and a constant."""
    parts = _parts(f)
    if parts is None:
        return writer.polynomial(sp.expand(f))
    return writer.exponential(*parts[1:]) if parts[0] == "exp" else writer.wave(*parts)


def stable_variants(derivation: Derivation) -> Iterator[Stable]:
    """The variant ``exact``."""
    f = next(iter(derivation.pieces)).expr
    terms = _sum(f)
    yield _of_one_term(derivation, f) if terms is None else _of_terms(derivation, f, terms)


def _of_one_term(derivation: Derivation, f: sp.Expr) -> Stable:
    parts = _parts(f)
    bounded = parts is not None and parts[0] != "exp"
    rate = float(parts[2]) if parts is not None else 1.0
    edge, far = Edge(), math.inf
    if parts is not None and (bounded or not sp.log(sp.Abs(parts[2]), 2).is_integer):
        far = TURNED / abs(rate)
        edge = Edge(abs(rate), 0.0, () if bounded else ((rate, rate**2 / 2), (rate, rate**2)))
    graphs, fits = _graphs(edge, lambda writer, outputs: _one(f, writer))
    truth, terms = closed_form_truth(derivation, edge.inside), exponential_terms(f)
    return Stable(
        variant="exact",
        truth=truth,
        measure=Inside(_steady_measure(derivation, terms, truth) if bounded and terms else RelativeMeasure(), edge),
        goal=1.0,
        aim=0.8,
        unit="tolerance",
        slack=MEAN,
        reach=far if bounded else math.inf,
        box={"mu": (-30.0, 30.0), "log2_var": (-40.0, 6.0)},
        fits=tuple(dict.fromkeys(fits)),
        domain={"mean": f"0 or 2^-126 <= |mean| <= {far:g}"} if math.isfinite(far) else {},
        edge=edge,
        doc="moments in closed form, 1 - exp(-y) by a fitted polynomial where y is small",
        **graphs,
    )


def _ends(terms: Terms) -> dict[str, tuple[float, float]]:
    """The signs of the outputs far to the left and to the right, for what overflows."""
    far = 300 / max([abs(complex(sp.N(b))) for b in terms.rates if b != 0] or [1.0])
    outputs = Closed.of(terms, None, 0, True).outputs

    def sign(moment: Moment, side: float) -> float:
        return -1.0 if moment.at(mpmath.mpf(side), mpmath.mpf(1)) < 0 else 1.0

    with mpmath.workdps(30):
        return {name: (sign(moment, -far), sign(moment, far)) for name, moment in outputs.items()}


def _of_terms(derivation: Derivation, f: sp.Expr, terms: Terms) -> Stable:
    rates = [complex(sp.N(b)) for b in terms.rates]
    turning = max(abs(b.imag) for b in rates)
    turning_var = max(abs(b.imag * b.real) for b in rates)
    growing = max(abs(b.real) for b in rates)
    rate = max(turning, growing) or 1.0
    edge = Edge()
    if turning:
        edge = Edge(rate, turning_var)
    elif growing:
        moments = Closed.of(terms, None, 0, True).outputs
        pairs = {(float(sp.re(p)), float(sp.re(q))) for name in OUTPUTS for p, q in moments[name].parts}
        edge = Edge(rate, max(q for _, q in pairs), tuple(sorted(pairs - {(0.0, 0.0)})))
    truth = closed_form_truth(derivation, edge.inside)
    steady = _steady(terms)
    measure = _steady_measure(derivation, terms, truth) if steady else TermsMeasure.of(terms)
    facts: dict[str, Any] = {}
    ends = {} if steady else _ends(terms)

    def write(writer: Writer, outputs: tuple[str, ...]) -> dict[str, Real]:
        if closed is None:
            return {name: writer.guarded(value, *ends[name]) for name, value in writer.polynomial(sp.expand(f)).items()}
        sums = SumWriter(writer, closed)
        values = sums.outputs(outputs)
        if ends:
            values = {name: writer.guarded(value, *ends[name]) for name, value in values.items()}
        if sums.sure is None:
            return values
        return {name: value * sums.sure for name, value in values.items()}

    closed = None
    if not f.is_polynomial(x):
        below, count = _split(terms, measure.allowed, derivation.rule.name)
        closed = Closed.of(terms, below, count, not steady)
        facts = {"series_below_variance": mpmath.nstr(below, 6), "series_terms": count}
    graphs, fits = _graphs(edge, write)
    inside = " + ".join(f"{r:g}·{of}" for r, of in ((edge.rate, "|mean|"), (edge.rate_var, "var")) if r)
    return Stable(
        variant="exact",
        truth=truth,
        measure=Inside(measure, edge),
        goal=1.0,
        aim=0.8,
        unit="tolerance",
        slack=MEAN,
        reach=TURNED / rate if edge.words else math.inf,
        box={"mu": (-30.0 / rate, 30.0 / rate), "log2_var": (-40.0, 6.0 - 2 * math.log2(rate))},
        fits=tuple(dict.fromkeys(fits)),
        domain={"mean": f"0 or 2^-126 <= |mean|, and {inside} <= {TURNED:g}"} if edge.words else {},
        edge=edge,
        facts=facts,
        doc="moments in closed form; the variance at small variances by its Hermite series, whose terms are positive",
        **graphs,
    )

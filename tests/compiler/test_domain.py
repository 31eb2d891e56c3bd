"""Domains: what a rule states, what a strategy states itself, and what is said where neither does."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import sympy as sp
from quadrature_truth import moments, partials

from momentgen.compiler.certify.evidence import Evidence
from momentgen.compiler.certify.variant import certified
from momentgen.compiler.derive import derive
from momentgen.compiler.ir.interpreter import evaluate
from momentgen.compiler.ir.stable import limits_of
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.domain import ENOUGH, DomainEdge
from momentgen.compiler.strategies.elementary.entire_graph import Edge
from momentgen.errors import RuleError
from momentgen.rule import Formula, Rule, mu, v
from momentgen.rule.symbols import x


def test_a_rule_states_a_domain_of_positive_numbers_for_one_input() -> None:
    assert Rule("f", f=x**2, domain={"var": 1e8, "mean": 10}).domain == {"var": 1e8, "mean": 10}
    for wrong, said in (
        ({"variance": 1.0}, "domain must name mean or var, got 'variance'"),
        ({"var": 0.0}, "domain: var must be positive"),
        ([1.0], "domain must be a dict"),
    ):
        with pytest.raises(RuleError, match=said):
            Rule("f", f=x**2, domain=wrong)  # type: ignore[arg-type]
    x1, x2 = sp.symbols("x1 x2", real=True)
    with pytest.raises(RuleError, match="domain is for"):
        Rule("f", f=sp.Max(x1, x2), inputs=("x1", "x2"), domain={"var": 1.0})


def test_beyond_the_domain_every_output_of_every_variant_is_nan_and_within_it_nothing_changes() -> None:
    variants = {"rough": Formula(mu**2, v)}
    plain = stabilise(derive(Rule("square_plus", f=x**2 + x, variants=variants)))
    limited = stabilise(derive(Rule("square_plus", f=x**2 + x, variants=variants, domain={"mean": 8.0, "var": 100.0})))
    mean = np.array([0.5, -8.0, 8.5, 0.5, 8.5, math.nan])
    var = np.array([0.0, 100.0, 1.0, 101.0, 1e30, 1.0])
    beyond = np.array([False, False, True, True, True, True])
    assert [one.variant for one in plain] == [one.variant for one in limited]
    for one, other in zip(plain, limited, strict=True):
        assert limits_of(other)["nan"] == "|mean| > 8 or var > 100"
        assert other.domain["var"] == "0 or 2^-127 <= var <= 100"
        for field in ("forward", "partials", "forward64", "partials64"):
            at = {"mean": mean, "var": var}
            want, found = outputs_float64(getattr(one, field), at), outputs_float64(getattr(other, field), at)
            for name in want:
                value, free = (np.broadcast_to(values[name], mean.shape) for values in (found, want))
                assert np.isnan(value[beyond]).all(), (field, name)
                assert (value[~beyond] == free[~beyond]).all(), (field, name)
        wrong = np.full(6, 1e9, np.float32)
        errors = other.measure("mean", wrong, np.zeros(6), mean.astype(np.float32), var.astype(np.float32))
        assert (errors[beyond] == 0).all()
        assert (errors[~beyond] > 1).all()


def test_an_edge_keeps_the_one_that_the_variant_has_and_survives_being_kept() -> None:
    edge = DomainEdge(var=4.0, own=Edge(30.0))
    assert edge.words == "var > 4 or |mean| > 33333.3"
    assert edge.inside(np.array([0.0, 0.0, 1e6]), np.array([1.0, 5.0, 1.0])).tolist() == [True, False, False]
    assert pickle.loads(pickle.dumps(edge)) == edge


@pytest.mark.slow
def test_a_bump_whose_integral_diverges_holds_up_to_a_variance_that_its_certificate_states() -> None:
    rule = Rule("bump", f=1 / sp.sqrt(1 + x**2))
    (stable,) = stabilise(derive(rule))
    assert isinstance(stable.edge, DomainEdge)
    assert stable.edge.var >= ENOUGH
    assert limits_of(stable)["nan"] == f"var > {stable.edge.var:g}"
    made = certified(rule, stable, lambda stage: None, Evidence("bump"))
    for m, var in ((0.3, 1.0), (-40.0, 2e4), (900.0, float(np.float32(0.9 * stable.edge.var)))):
        at = {"mean": np.array([m], np.float32), "var": np.array([var], np.float32)}
        found = evaluate(made.forward, at, {})
        exact = moments(rule.f, float(at["mean"][0]), float(at["var"][0]), digits=15)
        assert abs(float(found["mean"][0]) - float(exact[0])) < 2e-6
        assert abs(float(found["var"][0]) - float(exact[1])) < 1e-5 * min(var, 1.0)
        seeds = {"grad_mean": np.ones(1, np.float32), "grad_var": np.zeros(1, np.float32)}
        slopes = evaluate(made.backward, at | seeds, {})
        want = partials(rule.f, float(at["mean"][0]), float(at["var"][0]), digits=15)
        largest = min(0.38, 2 / var)  # of |dmean/dmu| over all means, or less
        assert abs(float(slopes["grad_mean"][0]) - float(want["dmean_dmu"])) < 1e-4 * largest
    far = {"mean": np.zeros(1, np.float32), "var": np.array([2 * stable.edge.var], np.float32)}
    assert all(np.isnan(value).all() for value in evaluate(made.forward, far, {}).values())

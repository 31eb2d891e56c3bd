"""Domains: what a rule states, and what holds beyond."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy as sp

from momentgen.compiler.derive import derive
from momentgen.compiler.ir.stable import limits_of
from momentgen.compiler.ir.values import outputs_float64
from momentgen.compiler.strategies import stabilise
from momentgen.compiler.strategies.domain import DomainEdge
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
    plain = stabilise(derive(Rule("square_plus", f=x**2 + 1, variants=variants)))
    limited = stabilise(derive(Rule("square_plus", f=x**2 + 1, variants=variants, domain={"mean": 8.0, "var": 100.0})))
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


def test_an_edge_keeps_the_one_that_the_variant_has() -> None:
    edge = DomainEdge(var=4.0, own=Edge(30.0))
    assert edge.words == "var > 4 or |mean| > 33333.3"
    assert edge.inside(np.array([0.0, 0.0, 1e6]), np.array([1.0, 5.0, 1.0])).tolist() == [True, False, False]

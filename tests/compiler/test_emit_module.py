"""The generated ``__init__.py``: the op with the parameters and variants of its rule."""

from __future__ import annotations

import ast

import pytest
import sympy
from real_rules import NAMES, op_of, rules, source_of

from momentgen.compiler.emit.module import render_module
from momentgen.rule import Parameter, Rule, x


@pytest.mark.parametrize("name", NAMES)
def test_op_has_the_parameters_variants_and_words_of_the_rule(name: str) -> None:
    rule, op = rules()[name], op_of(name)
    assert op.name == name
    assert set(op.variants) == {"exact", *rule.variants, *rule.accuracy.ulp}
    assert op.default == op.variants[0] == "exact"
    assert rule.doc in str(op.__doc__)
    for given, made in zip(rule.parameters, op.parameters, strict=True):
        assert (made.name, made.default, made.low, made.high) == (given.name, given.default, given.low, given.high)
    assert rule.digest in source_of(name, "__init__", ".py")


def test_quotes_infinite_ranges_and_missing_defaults_survive() -> None:
    scale = Parameter("scale", default=2.0, low=0.0, high=float("inf"), doc='a "quoted" \\ word')
    rule = Rule("scaled", f=scale.symbol * sympy.Abs(x), parameters=(scale,), doc="Says 'x' — and \"y\".")
    source = render_module(rule, ("exact",), header_digest="d" * 64)
    tree = ast.parse(source)
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Op")
    keywords = {k.arg: k.value for k in call.keywords}
    assert ast.literal_eval(keywords["doc"]) == rule.doc
    assert ast.literal_eval(keywords["variants"]) == ("exact",)
    (parameter,) = keywords["parameters"].elts  # type: ignore[attr-defined]
    made = {k.arg: eval(ast.unparse(k.value)) for k in parameter.keywords}
    assert made == {"default": 2.0, "low": 0.0, "high": float("inf"), "doc": scale.doc}


def test_a_rule_without_words_gets_some_and_no_parameters_are_a_tuple() -> None:
    rule = Rule("bare", f=sympy.Abs(x))
    source = render_module(rule, ("exact", "tight"), header_digest="0")
    assert '"""Moments of bare."""' in source
    assert "parameters=()," in source
    assert "import Op\n" in source

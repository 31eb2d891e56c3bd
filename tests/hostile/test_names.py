"""Names and texts of rules that nobody should write: each is refused with its cause, or arrives as it was written.

None may raise a foreign error, or an internal one.
"""

import ast
import builtins
import keyword
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile.strategies import FAST
from hypothesis import given
from hypothesis import strategies as st
from sympy import Integer

from momentgen.compiler.emit import Header
from momentgen.compiler.emit.module import render_module
from momentgen.compiler.pipeline import compile_rule
from momentgen.errors import RuleError
from momentgen.rule import Formula, Noise, Parameter, Rescaled, Rule, S, mu, v, x
from momentgen.rule.files import load_rule_sources

ROOT = Path(__file__).parents[2]

# ---------------------------------------------------------------- names

NAMES = [
    "größe", "x²", "", " ", "a b", "a-b", "1st", "_", "__init__", "lambda", "None", "a\0b", "a\n", "\ud800", "ﬁ",
    "con", "NUL", "com1", "manifest", "n" * 65, "n" * 10_000, 'a"b', "a'", "a\\", "*/", "../a", "a/b", "a.py", "日本",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_files_or_c_cannot_have_is_refused(name: str) -> None:
    for make in (
        lambda: Rule(name, f=x),
        lambda: Rule("r", f=x, variants={name: Formula(mu, v)}),
        lambda: Rule("r", f=x * Parameter(name, default=1).symbol, parameters=(Parameter(name, default=1),)),
        lambda: Rule("r", f=x * Noise(name, Integer(0), Integer(1)).symbol, noise=Noise(name, Integer(0), Integer(1))),
    ):
        with pytest.raises(RuleError, match="a rule's name must"):
            make()


@pytest.mark.parametrize("name", ["abs", "print", "float", "Op", "Parameter", "torch", "int", "match", "n" * 64, "A"])
def test_other_names_make_modules_that_can_be_imported(name: str) -> None:
    assert imported(Rule(name, f=x)).kwargs["name"] == name


def test_names_that_differ_by_case_alone_are_refused_since_their_files_may_be_one(tmp_path: Path) -> None:
    (tmp_path / "relu.py").touch()
    (tmp_path / "Relu.py").touch()
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("a file system where case does not count")
    with pytest.raises(RuleError, match="'Relu' and 'relu' differ by case only"):
        load_rule_sources(tmp_path)


OTHERS = [
    "double", "restrict", "int", "exp", "sqrt", "fmaf", "p_hi", "p_lo", "t0", "c17", "self", "variant", "mean", "mu",
    "x", "a", "m", "Phi", "params", "n", "i", "out_mean", "grad_var", "mean_ptr", "BLOCK", "FMA", "arb",
]  # fmt: skip


def parameter_names() -> Iterator[str]:
    """What generated functions with parameters call things by, the parameters left out; keywords; builtins; C."""
    for rule in ("leaky_relu", "bernoulli_noise", "softplus"):
        tree = ast.parse((ROOT / "generated" / rule / "exact_torch.py").read_text(encoding="utf-8"))
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.args.kwonlyargs]
        assert functions
        for function in functions:
            own = {arg.arg for arg in function.args.kwonlyargs}
            yield from (node.id for node in ast.walk(function) if isinstance(node, ast.Name) and node.id not in own)
            yield from (arg.arg for arg in function.args.args)
    for path in ROOT.glob("generated/*/*_torch.py"):
        found = re.findall(r"^from (?!__future__)\S+ import (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        yield from (name for names in found for name in names.split(", "))
    yield from keyword.kwlist
    yield from (name for name in dir(builtins) if not name.startswith("_"))

    yield from OTHERS


def test_a_parameter_has_any_name_and_formulas_and_generated_code_call_it_by_a_free_one() -> None:
    used = set(parameter_names()) - {"fmaf"}
    for name in sorted(used):
        parameter = Parameter(name, default=1.0)
        if keyword.iskeyword(name) or name[0] == "_" or name in ("self", "x", "mean", "var", "variant"):
            with pytest.raises(RuleError, match=r"must be a Python identifier, no keyword|the op's own arguments"):
                Rule("r", f=x, parameters=(parameter,))
            continue
        (inner,) = Rule("r", f=x * parameter.symbol, parameters=(parameter,)).in_formulas.parameters
        assert inner.name == inner.symbol.name == parameter.symbol.name
        assert inner.name not in used
        Rule("r", f=x, parameters=(inner,))


def test_the_units_of_f_take_parameters_by_their_own_names() -> None:
    scale, width = Parameter("lambda_", default=1.0, low=0.5, high=2), Parameter("v", default=1.0, low=0.5, high=2)
    units = Rescaled(S(x), width=width.symbol, scale=scale.symbol)
    f = scale.symbol * S(x / width.symbol)
    rule = Rule("r", f=f, parameters=(scale, width), rescaled=units)
    called = {p.symbol.name: p.name for p in rule.parameters}
    source = render_module(rule.in_formulas, ("exact",), header_digest="0", affine=("v_",), called=called)
    op = executed(source.replace("Op, Parameter, Scaling", "Op, Parameter"), Scaling=_Module)["r"]
    assert op.kwargs["affine"] == ("v",)
    assert [p.args[0] for p in op.kwargs["parameters"]] == ["lambda_", "v"]
    assert [p.kwargs.get("code") for p in op.kwargs["parameters"]] == [None, "v_"]
    assert op.kwargs["scaling"].kwargs["width"](lambda_=3.0, v=2.0) == 2.0


@given(name=st.text(max_size=8) | st.text("aZ_09é", max_size=5) | st.none() | st.integers())
@FAST
def test_any_name_is_ascii_or_refused(name: Any) -> None:
    parameter = Parameter("k" if name is None else name, default=1.0)
    for make in (lambda: Rule(name, f=x), lambda: Rule("r", f=x, parameters=(parameter,))):
        try:
            rule = make()
        except RuleError:
            continue
        assert rule.name.isidentifier()
        assert rule.name.isascii()
        imported(rule)


# ---------------------------------------------------------------- texts

TEXTS = [
    '"""', '""""', '\\"""', "\\", 'ends with "', "'''", "*/ int x;", "// \\", "??/", "{}", "{call}", "%s", "\\N{x}",
    "\\x", "two\nlines", "a\ttab", "\u2028\u2029\xa0", "#!", "-*- coding: utf-16 -*-", "x" * 4000, "日本 Größe 🙂",
    "<b>&amp;",
]  # fmt: skip
REFUSED_TEXTS = ["\0", "a\x07", "\x1b[31m", "\r", "\ud800", "\u202e", "x" * 4001, 3, None, b"bytes"]


class _Module:
    """Stands in for ``momentgen.runtime`` while a generated ``__init__.py`` runs: keeps what it is called with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


def executed(source: str, **known: Any) -> dict[str, Any]:
    """The names of a generated ``__init__.py``, run as from its file."""
    stand_in = types.ModuleType("momentgen.runtime")
    stand_in.__dict__.update(Op=_Module, Parameter=_Module)
    before = sys.modules.get("momentgen.runtime")
    sys.modules["momentgen.runtime"] = stand_in
    try:
        names: dict[str, Any] = {"__name__": "generated.r", **known}
        exec(compile(source.encode(), "__init__.py", "exec"), names)
        return names
    finally:
        sys.modules.pop("momentgen.runtime")
        if before is not None:
            sys.modules["momentgen.runtime"] = before


def imported(rule: Rule) -> Any:
    """The op of a rule's generated module."""
    return executed(render_module(rule, ("exact",), header_digest="0"))[rule.name]


def check_text(text: str) -> None:
    parameter = Parameter("k", default=1.0, doc=text)
    rule = Rule("r", f=x * parameter.symbol, parameters=(parameter,), doc=text, citation=text)
    names = executed(render_module(rule, ("exact",), header_digest="0"))
    if text:
        assert names["__doc__"] == names["r"].kwargs["doc"] == text
    assert names["r"].kwargs["parameters"][0].kwargs["doc"] == text
    header = Header("r", "exact", (text, f"worst at {text}"))
    assert ast.parse(header.python().encode()).body == []
    lines = header.c().encode().split(b"\n")
    assert all(line.startswith(b"//") and not line.rstrip().endswith((b"\\", b"??/")) for line in lines)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[:20]))
def test_a_text_arrives_in_generated_code_as_it_was_written(text: str) -> None:
    check_text(text)


@pytest.mark.parametrize("text", REFUSED_TEXTS, ids=lambda text: ascii(text)[:20])
def test_a_text_that_source_code_cannot_hold_is_refused(text: Any) -> None:
    for make in (
        lambda: Rule("r", f=x, doc=text),
        lambda: Rule("r", f=x, citation=text),
        lambda: Rule("r", f=x, parameters=(Parameter("k", default=1.0, doc=text),)),
        lambda: Rule("r", f=x, variants={"new": Formula(mu, v, citation=text)}),
    ):
        with pytest.raises(RuleError, match=r"doc|citation"):
            make()


@given(text=st.text(st.characters(codec=None), max_size=40) | st.text("\"'\\\n\t*/?#{}%xN", max_size=12))
@FAST
def test_any_text_arrives_or_is_refused(text: str) -> None:
    try:
        Rule("r", f=x, doc=text)
    except RuleError:
        return
    check_text(text)


@pytest.mark.slow
def test_a_rule_of_hostile_texts_builds_and_its_files_can_be_read() -> None:
    text = 'a """ \\ */ ??/ {x} \n " \\'
    files = compile_rule(Rule("r", f=x, doc=text, citation=text)).files
    for name, source in files.items():
        if name.endswith(".py"):
            compile(source.encode(), name, "exec")
    assert executed(files["__init__.py"])["r"].kwargs["doc"] == text

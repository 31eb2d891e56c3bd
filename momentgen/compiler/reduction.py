"""Rules over an axis through all stages: from a :class:`~momentgen.rule.Reduction` to the texts of its files.

What is emitted is the PyTorch code of each variant's score term; reducing over the axis is the runtime's
(:mod:`momentgen.runtime.reduce`).  The code is written for float64, in which the runtime calls it: a score may be a sum
of a thousand logarithms of tails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import mpmath
import sympy as sp
from sympy.core.sorting import default_sort_key

from momentgen.compiler.emit._text import Header, docstring, json_text
from momentgen.compiler.pipeline import CompiledRule, VariantSummary
from momentgen.errors import BuildError
from momentgen.rule import Reduction, Score
from momentgen.rule.symbols import Phi, mu1, mu2, v1, v2

_NAMES = {mu1: "mean", v1: "var", mu2: "other_mean", v2: "other_var"}


def compile_reduction(rule: Reduction, *, progress: Callable[[str], None] = lambda stage: None) -> CompiledRule:
    """Emit a rule over an axis.

    Args:
        rule: a checked rule.
        progress: called with the name of each stage as it begins.

    Raises:
        BuildError: if a score has a function that the renderer does not know.
    """
    files: dict[str, str] = {}
    for name, score in rule.variants.items():
        progress(f"emit {name}")
        files[f"{name}_torch.py"] = _module(rule, name, score)
        files[f"{name}.json"] = json_text(_certificate(rule, name, score)) + "\n"
    files["__init__.py"] = _init(rule)
    return CompiledRule(rule.name, files, tuple(VariantSummary(name, {}, {}) for name in rule.variants))


def _module(rule: Reduction, name: str, score: Score) -> str:
    header = Header(rule.name, name, (f"term: {score.term}",))
    arguments = ["mean", "var"] if score.reduce == "none" else ["mean", "var", "other_mean", "other_var"]
    source = _source(rule.name, score.term)
    return "\n".join(
        [
            header.python(),
            f'"""{rule.name}, variant {name}: the term that a class\'s score is reduced from, for float64."""',
            "",
            "from __future__ import annotations",
            "",
            *(["import torch"] if "torch." in source else []),
            "from torch import Tensor",
            "",
            '__all__ = ["REDUCE", "term"]',
            "",
            f'REDUCE = "{score.reduce}"',
            "",
            "",
            f"def term({', '.join(f'{a}: Tensor' for a in arguments)}) -> Tensor:",
            f"    {docstring(score.citation or 'The score term.')}",
            f"    return {source}",
            "",
        ]
    )


def _source(rule: str, expr: sp.Expr) -> str:
    """An expression as PyTorch source; log(Phi(z)) as one function, which does not underflow."""
    if expr.is_number:
        return repr(float(mpmath.mpf(sp.N(expr, 30))))
    if isinstance(expr, sp.Symbol):
        return _NAMES[expr]
    if isinstance(expr, sp.log) and isinstance(expr.args[0], Phi):
        return f"torch.special.log_ndtr({_source(rule, expr.args[0].args[0])})"
    if isinstance(expr, sp.Add):
        return " + ".join(_source(rule, arg) for arg in sorted(expr.args, key=default_sort_key))
    if isinstance(expr, sp.Pow) and expr.exp == sp.Rational(1, 2):
        return f"torch.sqrt({_source(rule, expr.base)})"
    if not isinstance(expr, sp.Mul) and not (isinstance(expr, sp.Pow) and expr.exp.is_Rational and expr.exp < 0):
        raise BuildError(rule, "emit", "expected sums, products, square roots and log(Phi)", expr)
    number, rest = expr.as_independent(*_NAMES, as_Add=False)
    above: list[str] = [] if number in (1, -1) else [_source(rule, number)]
    below: list[str] = []
    for factor in sorted(sp.Mul.make_args(rest), key=default_sort_key):
        base, power = factor.as_base_exp()
        inverse = bool(power.is_Rational and power < 0)
        factor = base**-power if inverse else factor
        text = _source(rule, factor)
        (below if inverse else above).append(f"({text})" if factor.is_Add else text)
    return ("-" if number == -1 else "") + " / ".join([" * ".join(above) or "1.0", *below])


def _certificate(rule: Reduction, name: str, score: Score) -> dict[str, Any]:
    return {
        "rule": rule.name,
        "variant": name,
        "digest": rule.digest,
        "term": str(score.term),
        "reduce": score.reduce,
        "citation": score.citation or rule.citation,
        "bounds": {},
        "domain": {"mean": "finite", "var": "finite, >= 0", "classes": ">= 1"},
        "method": {
            "how": "the formula in float64, normalised in the log domain, rounded once to the input's dtype",
            "measured": "against quasi-Monte Carlo and quadrature by benchmarks/softmax.py",
        },
    }


def _init(rule: Reduction) -> str:
    doc = rule.doc or f"{rule.name} of normal logits."
    variants = ", ".join(f'"{name}"' for name in rule.variants)
    return "\n".join(
        [
            f"# {rule.name}. Generated by momentgen; do not edit. Rule digest {rule.digest}",
            docstring(doc),
            "",
            "from momentgen.runtime import Reduction",
            "",
            f'__all__ = ["{rule.name}"]',
            "",
            f"{rule.name} = Reduction(",
            f'    name="{rule.name}",',
            "    package=__name__,",
            f"    log={rule.log},",
            f"    variants=({variants}{',' if len(rule.variants) == 1 else ''}),",
            f'    default="{next(iter(rule.variants))}",',
            f"    doc={json.dumps(doc, ensure_ascii=False)},",
            ")",
            "",
        ]
    )

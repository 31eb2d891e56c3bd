"""Rules over an axis: a softmax of normal logits as data.

Each variant states the term that a class's score is reduced from.  It is a formula in the moments of the class
(``mu1``, ``v1``) and of another one (``mu2``, ``v2``).  The probabilities are the softmax of the scores.  The runtime
does the reduction itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sympy import Expr

from momentgen.errors import RuleError
from momentgen.rule.expressions import check_expression
from momentgen.rule.names import check_distinct, check_name, check_text
from momentgen.rule.symbols import mu1, mu2, v1, v2

__all__ = ["Reduction", "Score"]


@dataclass(frozen=True)
class Score:
    """The log of a class's unnormalised probability.

    Args:
        term: in ``mu1``, ``v1``, the class's own moments, and, unless ``reduce`` is ``"none"``, ``mu2``, ``v2``, those
            of every class in turn, itself included.
        reduce: ``none``: the term is the score; ``sum``: the score is the sum of the terms over the classes;
            ``negative_logsumexp``: it is -log sum exp(term).
        citation: where it comes from.
    """

    term: Expr
    reduce: Literal["none", "sum", "negative_logsumexp"] = "none"
    citation: str = ""


@dataclass(frozen=True)
class Reduction:
    """A softmax, or log-softmax, of independent normal logits; checked when it is made.

    Args:
        name: an identifier equal to the stem of the rule's file.
        variants: name -> its score; the first is the default.
        log: whether the result is log-probabilities.
        citation, doc: where the rule comes from, and one line on what it is.
        digest: SHA-256 of the rule file, set when it is loaded.

    Raises:
        RuleError: saying what is wrong.
    """

    name: str
    variants: Mapping[str, Score] = field(hash=False)
    log: bool = False
    citation: str = ""
    doc: str = ""
    digest: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_name(self.name, str(self.name))
        check_text(self.doc, self.name, "doc")
        check_text(self.citation, self.name, "citation")
        if not isinstance(self.variants, Mapping) or not self.variants:
            raise RuleError(self.name, f"variants must be a dict of at least one Score, got {self.variants!r}")
        for name, score in self.variants.items():
            check_name(name, f"{self.name}, variant {name}")
            if not isinstance(score, Score):
                raise RuleError(self.name, f"variant {name}: expected a Score, got {type(score).__name__}")
            check_text(score.citation, self.name, f"variant {name}: citation")
            if score.reduce not in ("none", "sum", "negative_logsumexp"):
                raise RuleError(self.name, f"variant {name}: unknown reduction {score.reduce!r}")
            known = (mu1, v1) if score.reduce == "none" else (mu1, v1, mu2, v2)
            check_expression(self.name, f"variant {name}, term", score.term, known)
        check_distinct(self.variants, self.name, "variants")

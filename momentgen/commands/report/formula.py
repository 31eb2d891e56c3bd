"""Formulas as MathML, which browsers render by themselves."""

from __future__ import annotations

from typing import Any

from sympy import Expr, Symbol
from sympy.printing.mathml import MathMLPresentationPrinter

#: how the vocabulary of rules is written
_NAMES = {"Phi": "Φ", "phi": "φ", "S": "S"}
_LONGEST = 250  # operations; beyond, a formula is nothing to look at


class _Printer(MathMLPresentationPrinter):
    """sympy's, with functions of ours by their symbols and parameters by their whole names."""

    def _named(self, name: str, arguments: tuple[Expr, ...]) -> Any:
        parts = [self._text("mi", name), self._text("mo", "(")]
        for i, argument in enumerate(arguments):
            parts += [self._text("mo", ",")] if i else []
            parts.append(self._print(argument))
        return self._row(*parts, self._text("mo", ")"))

    def _text(self, tag: str, text: str) -> Any:
        element = self.dom.createElement(tag)
        element.appendChild(self.dom.createTextNode(text))
        return element

    def doprint(self, expr: Expr) -> str:
        """The expression's MathML; unlike sympy's own, it goes through the methods below from the start."""
        return str(self._print(expr).toxml())

    def _print(self, expr: Any, **settings: Any) -> Any:
        name = _NAMES.get(type(expr).__name__)
        return super()._print(expr, **settings) if name is None else self._named(name, expr.args)

    def _print_Piecewise(self, e: Expr) -> Any:  # noqa: N802
        table = self.dom.createElement("mtable")
        table.setAttribute("columnalign", "left left")
        for value, condition in e.args:
            cells = [self._print(value), self._text("mtext", "otherwise" if condition == True else "if ")]  # noqa: E712
            if condition != True:  # noqa: E712 - sympy's own truth
                cells[1] = self._row(cells[1], self._print(condition))
            line = self.dom.createElement("mtr")
            for cell in cells:
                box = self.dom.createElement("mtd")
                box.appendChild(cell)
                line.appendChild(box)
            table.appendChild(line)
        return self._row(self._text("mo", "{"), table)

    def _row(self, *parts: Any) -> Any:
        row = self.dom.createElement("mrow")
        for part in parts:
            row.appendChild(part)
        return row

    def _print_Symbol(self, symbol: Symbol, style: str = "plain") -> Any:  # noqa: N802
        if len(symbol.name) > 1 and "_" in symbol.name:
            return self._text("mi", symbol.name)
        return super()._print_Symbol(symbol, style)


def mathml(left: str, right: Expr) -> str:
    """``left = right`` as a MathML element in display style; empty where ``right`` is too long to be looked at.

    Args:
        left: MathML of the left side's inside, e.g. ``<mi>f</mi>``.
        right: an expression.

    >>> mathml("<mi>f</mi>", Symbol("x"))
    '<math display="block"><mrow><mi>f</mi><mo>=</mo><mi>x</mi></mrow></math>'
    """
    if right.count_ops() > _LONGEST:
        return ""
    inside = _Printer().doprint(right)
    return f'<math display="block"><mrow>{left}<mo>=</mo>{inside}</mrow></math>'

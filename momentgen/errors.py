"""Errors a user of momentgen can meet, from the rule file to the running op.

Every error names what was expected, what came, and where.  Nothing in the
package raises a bare ``assert`` for a user's mistake.
"""

from __future__ import annotations

__all__ = ["BuildError", "InputError", "MomentgenError", "RuleError", "UnsupportedError"]


class MomentgenError(Exception):
    """Base class of all errors raised on purpose by momentgen."""


class RuleError(MomentgenError):
    """A rule file, or the rule in it, is wrong; raised before anything is built.

    Args:
        rule: name of the rule, or of its file where it has no name yet.
        cause: what was expected and what came.
        expression: the expression at fault, if there is one.
    """

    def __init__(self, rule: str, cause: str, expression: object | None = None) -> None:
        self.rule, self.cause, self.expression = rule, cause, expression
        where = f" in `{expression}`" if expression is not None else ""
        super().__init__(f"rule {rule}: {cause}{where}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.rule, self.cause, self.expression and str(self.expression)))


class BuildError(MomentgenError):
    """A stage of the compiler could not do its work for a valid rule.

    Args:
        rule: name of the rule.
        stage: ``derive``, ``approximate``, ``strategies``, ``lower``, ``emit``, ``certify`` or ``write``.
        cause: what was expected and what came.
        expression: the expression at fault, if there is one.
        others: (strategy, reason) of the other strategies that were tried; not in the text.
    """

    def __init__(
        self,
        rule: str,
        stage: str,
        cause: str,
        expression: object | None = None,
        others: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.rule, self.stage, self.cause, self.expression, self.others = rule, stage, cause, expression, others
        where = f" in `{expression}`" if expression is not None else ""
        super().__init__(f"rule {rule}, stage {stage}: {cause}{where}")

    def __reduce__(self) -> tuple[object, ...]:
        # Builds run in worker processes: the error must survive pickling.
        said = self.expression and str(self.expression)
        return (type(self), (self.rule, self.stage, self.cause, said, self.others))


class InputError(MomentgenError, ValueError):
    """An op was called with something it cannot take (shape, dtype, device, parameter)."""


class UnsupportedError(MomentgenError, NotImplementedError):
    """A network uses a random value in a way without a rule; the message names function, law, module and line."""

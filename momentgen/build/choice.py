"""Finds the rule that a user names, and makes the error if there is no such rule."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path

from momentgen.errors import RuleError


def no_such_rule(name: str, names: Collection[str], where: str) -> RuleError:
    """The error for an unknown name: it lists names that are near, or else all.

    >>> str(no_such_rule("reluu", ["abs", "elu", "relu"], "rules"))
    'rule reluu: no such rule in rules; did you mean relu?'
    >>> str(no_such_rule("swish", ["abs", "relu"], "rules"))
    'rule swish: no such rule in rules; there are: abs, relu'
    """
    near = difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.8)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(names)) or 'none'}"
    return RuleError(name, f"no such rule in {where}; {hint}")


def chosen_rules(only: str | None, names: Collection[str], rules: Path) -> list[str]:
    """All of ``names``, or ``only`` the one.

    Args:
        only: a name, or None for all.
        names: of the rules in ``rules``.
        rules: directory of rule files.

    Raises:
        RuleError: if ``only`` is not one of them.
    """
    if only is None or only in names:
        return [name for name in names if only in (None, name)]
    raise no_such_rule(only, names, str(rules))

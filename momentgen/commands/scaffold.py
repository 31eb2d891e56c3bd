"""``momentgen new``: a rule file to start from, in the style of ``rules/``."""

from __future__ import annotations

from pathlib import Path

from momentgen.errors import MomentgenError
from momentgen.rule.names import check_name

_TEMPLATE = '''\
"""{title}, f(x), of a normal input."""

from sympy import Max, Rational

from momentgen.rule import Rule, x

# f is written in x with sympy's functions (Max, Min, Abs, Piecewise, exp, log, sin, tanh, ...) and with Phi, phi and
# sigmoid of momentgen.rule: normal distribution function and density, and 1/(1 + exp(-x)).  This one, max(x, x/10), is
# a placeholder that builds as it stands.
rule = Rule(
    "{name}",
    f=Max(x, Rational(1, 10) * x),
    citation="",  # where f comes from: authors, year, title, equation
    doc="{title}: max(x, x/10), a placeholder.",
)
'''


def scaffold(name: str, rules: Path) -> Path:
    """Write ``RULES/NAME.py``, a rule that builds as it stands; ``rules`` is made if it is not there.

    Returns:
        The file written.

    Raises:
        RuleError: if ``name`` cannot name a rule.
        MomentgenError: if the file exists (it is left as it is), or cannot be written.
    """
    check_name(name, f"{name!r}")
    path = rules / f"{name}.py"
    try:
        rules.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(_TEMPLATE.format(name=name, title=name.replace("_", " ").capitalize()))
    except FileExistsError:
        what = path if path.exists() else rules
        raise MomentgenError(f"{what} exists already and was left as it is; choose another name or directory") from None
    except OSError as error:
        raise MomentgenError(f"cannot write {path}: {error.strerror or error}") from error
    return path

"""``support``: the table of functions and laws, as it is."""

from __future__ import annotations

from momentgen.laws.activations import UNDEFINED
from momentgen.laws.channels import Channels
from momentgen.laws.diagonal import Diagonal, Point
from momentgen.laws.law import Law, rule_of
from momentgen.laws.table import KINDS
from momentgen.laws.weights import Weight, refused

LAWS: tuple[type[Law], ...] = (Point, Diagonal, Channels, Weight)


def support() -> str:
    """The functions of torch that laws have rules for, as a Markdown table: one row per kind and set of laws.

    >>> print(support().splitlines()[0])
    | kind | functions | `Point` | `Diagonal` | `Channels` | `Weight` |
    """
    grouped: dict[tuple[str, ...], list[str]] = {}
    for kind, known in KINDS.items():
        for name in known:
            has = [
                (rule_of(law, name, kind) or refused) is not refused and (law is Point or name not in UNDEFINED)
                for law in LAWS
            ]
            grouped.setdefault((kind, *("yes" if one else "no" for one in has)), []).append(f"`{name}`")
    rows = [("kind", "functions", *(f"`{law.__name__}`" for law in LAWS)), ("---",) * (2 + len(LAWS))]
    rows += [(kind, ", ".join(sorted(names)), *flags) for (kind, *flags), names in grouped.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)

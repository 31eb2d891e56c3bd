"""``support``: the table of functions and laws, as it is."""

from __future__ import annotations

from dataclasses import dataclass

from momentgen.laws.activations import UNDEFINED
from momentgen.laws.channels import Channels
from momentgen.laws.diagonal import Diagonal, Point
from momentgen.laws.law import Law, rule_of
from momentgen.laws.table import KINDS

__all__ = ["LAWS", "Support", "support"]

LAWS: tuple[type[Law], ...] = (Point, Diagonal, Channels)


@dataclass(frozen=True)
class Support:
    """Which function has a rule for which law; prints as a table.

    Args:
        rows: (kind, function, one flag per law).
    """

    rows: tuple[tuple[str, str, tuple[bool, ...]], ...]

    def __str__(self) -> str:
        return self.markdown()

    def markdown(self) -> str:
        """One row per kind and set of laws, as a Markdown table."""
        grouped: dict[tuple[str, tuple[bool, ...]], list[str]] = {}
        for kind, name, flags in self.rows:
            grouped.setdefault((kind, flags), []).append(name)
        head = "| kind | functions | " + " | ".join(f"`{law.__name__}`" for law in LAWS) + " |"
        lines = [head, "| --- | --- |" + " --- |" * len(LAWS)]
        for (kind, flags), names in grouped.items():
            cells = " | ".join("yes" if flag else "no" for flag in flags)
            lines.append(f"| {kind} | {', '.join(f'`{name}`' for name in sorted(names))} | {cells} |")
        return "\n".join(lines)


def support() -> Support:
    """The functions of torch that laws have rules for.

    >>> ("affine", "linear", (True, True, True)) in support().rows
    True
    """

    def has(law: type[Law], kind: str, name: str) -> bool:
        return rule_of(law, name, kind) is not None and (law is Point or name not in UNDEFINED)

    rows = ((kind, name, tuple(has(law, kind, name) for law in LAWS)) for kind in KINDS for name in KINDS[kind])
    return Support(tuple(rows))

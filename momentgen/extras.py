"""What an installation lacks, said in one sentence with the line to type; and the address of the documentation.

momentgen installs what running networks needs.  The rest comes in extras; whoever needs one calls :func:`require`
where its work begins.  Only the standard library is imported here.
"""

from __future__ import annotations

import importlib.util

from momentgen.errors import MomentgenError

__all__ = ["EXTRAS", "SITE", "MissingExtraError", "has", "require"]

#: where messages send readers; an installed package has no docs/
SITE = "https://momentgen.github.io/momentgen"

#: extra of pyproject.toml -> the modules it is needed for
EXTRAS = {
    "chains": ("arviz",),
    "compiler": ("flint", "mpmath", "rich", "sympy", "typer"),
    "estimators": ("scipy", "sklearn"),
    "gpu": ("triton",),
    "plot": ("matplotlib",),
    "report": ("matplotlib",),
}


class MissingExtraError(MomentgenError, ImportError):
    """An extra of momentgen is not installed; the message has the line to type."""


def _missing(extra: str) -> list[str]:
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def has(extra: str) -> bool:
    """Whether all modules of an extra are installed.

    >>> has("compiler")
    True
    """
    return not _missing(extra)


def require(extra: str, what: str) -> None:
    """Go on only where an extra is installed.

    Args:
        extra: a key of :data:`EXTRAS`.
        what: needs it; begins the sentence.

    Raises:
        MissingExtraError: naming what is missing, and the line to type.
    """
    if missing := _missing(extra):
        line = f"pip install 'momentgen[{extra}]'"
        raise MissingExtraError(f"{what} needs {' and '.join(missing)}: run `{line}`", name=missing[0])

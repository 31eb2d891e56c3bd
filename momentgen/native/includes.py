"""C that many generated files share: they name it, and what compiles them puts its text there.

Only the standard library is imported: wheels are built without torch.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["FLOAT64", "whole"]

#: what a generated file in float64 begins with
FLOAT64 = '#include "momentgen/native/float64.h"'


def whole(source: str) -> str:
    """The text of a C file with the text of what it includes of momentgen's.

    >>> FLOAT64 in whole(FLOAT64), "exp64" in whole(FLOAT64), whole("int one;")
    (False, True, 'int one;')
    """
    if FLOAT64 not in source:
        return source
    return source.replace(FLOAT64, Path(__file__).with_name("float64.h").read_text(encoding="utf-8"), 1)

"""C that many generated files share: they name it, and what compiles them puts its text there.

Only the standard library is imported: wheels are built without torch.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["FLOAT32", "FLOAT64", "whole"]

#: what a generated file in float32, or in float64, begins with
FLOAT32, FLOAT64 = (f'#include "momentgen/native/float{bits}.h"' for bits in (32, 64))


def whole(source: str) -> str:
    """The text of a C file with the texts of what it includes of momentgen's.

    >>> FLOAT64 in whole(FLOAT64), "exp64" in whole(FLOAT64), "POLY1" in whole(FLOAT32), whole("int one;")
    (False, True, True, 'int one;')
    """
    folder = Path(__file__).parent
    return re.sub(
        r'#include "momentgen/native/(\w+\.h)"', lambda name: whole((folder / name[1]).read_text("utf-8")), source
    )

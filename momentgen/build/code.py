"""Which compiler made a rule's files: a digest of the bytes of its code, and of the versions of its libraries.

Only the standard library is imported here: a build with nothing to do must end at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path

#: what the compiler's numbers and expressions come from
LIBRARIES = ("sympy", "mpmath", "python-flint", "numpy")
#: what compiling a rule may run, in momentgen's folder; a test holds it to what is loaded
PARTS = ("compiler", "native", "rule", "errors.py", "sign_change.py")
_SUFFIXES = frozenset({".py", ".c", ".h"})


@lru_cache
def library_versions() -> Mapping[str, str]:
    """Version of each of :data:`LIBRARIES`."""
    return {name: metadata.version(name) for name in LIBRARIES}


def code_files(root: Path) -> list[Path]:
    """The files of the compiler in the package's directory ``root``, sorted."""
    found = [path for part in PARTS for path in (root / part, *(root / part).rglob("*"))]
    return sorted(path for path in found if path.suffix in _SUFFIXES and path.is_file())


def code_digest(root: Path = Path(__file__).parents[1]) -> str:
    """Digest of the compiler's files as they are now, and of its libraries' versions."""
    whole = hashlib.sha256(repr(sorted(library_versions().items())).encode())
    for path in code_files(root):
        whole.update(f"{path.relative_to(root).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:20]

"""What a module's code means, and which modules take part in it: found from the sources, without running them.

A build must know whether the code that made its output has changed since.  Comments, docstrings and layout change
nothing, so digests of syntax trees without them are compared.  Only modules that the code imports, directly or not,
count.  Only the standard library is imported here: a build with nothing to do must end at once.

An import names an object, and a package's ``__init__`` may have that object from elsewhere.  Its own code then counts,
as it says from where, and its other imports do not.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


def digest(data: bytes) -> str:
    """A short digest of ``data``, against change and not against malice.

    >>> digest(b"")
    'e3b0c44298fc1c149afb'
    """
    return hashlib.sha256(data).hexdigest()[:20]


def normal_form(source: bytes | str) -> str:
    r"""The syntax tree of a module's text as text, the same in all versions of Python, without comments and docstrings.

    Raises:
        SyntaxError: if it is no Python.

    >>> print(normal_form('a = 1  # one'))
    (Module body [ (Assign targets [ (Name id 'a' ) ] value (Constant value 1 ) ) ] )
    >>> normal_form('def f():\n    "Doc."\n    return (1 +\n 2)') == normal_form("def f(): return 1+2")
    True
    """
    return _form(ast.parse(source))


def _form(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                del node.body[0]
    words: list[str] = []
    _write(tree, words)
    return " ".join(words)


def meaning(source: bytes | str) -> str:
    """Digest of :func:`normal_form`."""
    return digest(normal_form(source).encode())


def _write(value: object, words: list[str]) -> None:
    if isinstance(value, ast.AST):
        words.append(f"({type(value).__name__}")
        for name in value._fields:
            field = getattr(value, name, None)
            # What is absent in one version of Python is empty in the next; whether a name is read or written, the
            # place where it stands says.
            if name in ("ctx", "kind") or field == [] or (field is None and not isinstance(value, ast.Constant)):
                continue
            words.append(name)
            _write(field, words)
        words.append(")")
    elif isinstance(value, list):
        words.append("[")
        for item in value:
            _write(item, words)
        words.append("]")
    else:
        words.append(repr(value))


@dataclass(frozen=True)
class _Parsed:
    """What is to be known of one module's text.

    Attributes:
        imports: (module, name imported from it, or "" for the module itself, name it has here), one an import.
        meaning: digest of its meaning.
    """

    imports: tuple[tuple[str, str, str], ...]
    meaning: str


@functools.lru_cache(maxsize=1024)
def _parsed(source: bytes, module: str, is_package: bool) -> _Parsed:
    imports: list[tuple[str, str, str]] = []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(alias.name, "", alias.asname or alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                home = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*home, *filter(None, [base])])
            imports += [(base, alias.name, alias.asname or alias.name) for alias in node.names]
    return _Parsed(tuple(imports), digest(_form(tree).encode()))


class Sources:
    """The modules of a package as they lie in its directory when they are first asked for.

    What is found of them goes along when it is handed to another process; their texts do not.

    Args:
        root: directory of the package; its name is the package's.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._digests: dict[str, str | None] = {}
        self._parsed: dict[str, _Parsed] = {}
        self._packages: dict[str, bool] = {}
        self._reached: dict[tuple[str, ...], tuple[str, ...]] = {}

    def digest(self, module: str) -> str | None:
        """Digest of the text of a module given by its full name; None where there is no such module."""
        if module not in self._digests:
            text = self._text(module)
            self._digests[module] = None if text is None else digest(text)
        return self._digests[module]

    def means(self, module: str, known: str) -> bool:
        """Whether the digest of a module's meaning is ``known``; not, if it is no Python."""
        try:
            return self._of(module).meaning == known
        except SyntaxError:
            return False

    def are_current(self) -> bool:
        """Whether what was asked for lies there as it did."""
        return all((None if (t := self._text(m)) is None else digest(t)) == known for m, known in self._digests.items())

    def reached(self, roots: Iterable[str]) -> tuple[str, ...]:
        """Full names of the modules that have a part in what those of ``roots`` do, these included, sorted.

        Raises:
            ValueError: if one of ``roots`` is not a module.
        """
        asked = tuple(roots)
        if asked not in self._reached:
            self._reached[asked] = self._find_reached(asked)
        return self._reached[asked]

    def _find_reached(self, roots: tuple[str, ...]) -> tuple[str, ...]:
        seen: set[str] = set()
        passed: set[str] = set()
        left = list(roots)
        if missing := [module for module in left if self.digest(module) is None]:
            raise ValueError(f"expected modules of {self.root}, got {', '.join(missing)}")
        while left:
            module = left.pop()
            if module in seen:
                continue
            seen.add(module)
            for base, name, _ in self._of(module).imports:
                if base.split(".")[0] == self.root.name:
                    left += self._meant(base, name, passed)
        return tuple(sorted(seen | passed))

    def meanings(self, modules: Iterable[str]) -> Mapping[str, str]:
        """Digest of the meaning of each of ``modules``."""
        return {module: self._of(module).meaning for module in modules}

    def _path(self, module: str) -> Path | None:
        first, *parts = module.split(".")
        if first != self.root.name:
            return None
        path = self.root.joinpath(*parts)
        for candidate in (path.with_suffix(".py") if parts else path / "__init__.py", path / "__init__.py"):
            if candidate.is_file():
                return candidate
        return None

    def _text(self, module: str) -> bytes | None:
        path = self._path(module)
        return None if path is None else path.read_bytes()

    def _is_package(self, module: str) -> bool:
        if module not in self._packages:
            path = self._path(module)
            self._packages[module] = path is not None and path.name == "__init__.py"
        return self._packages[module]

    def _of(self, module: str) -> _Parsed:
        if module not in self._parsed:
            self.digest(module)
            self._parsed[module] = _parsed(self._text(module) or b"", module, self._is_package(module))
        return self._parsed[module]

    def _meant(self, base: str, name: str, passed: set[str]) -> list[str]:
        """The modules meant by ``from base import name``; packages that only pass the name on go into ``passed``."""
        if (base, name) == (self.root.name, "__version__"):  # a version is compared as what it is
            return []
        if not name or name == "*" or not self._is_package(base):
            return [base] if self.digest(base) is not None else []
        for source, original, here in self._of(base).imports:
            if here == name and original and original != "*":
                passed.add(base)
                return self._meant(source, original, passed) if source != base else [f"{base}.{original}"]
        if self.digest(f"{base}.{name}") is not None:
            return [f"{base}.{name}"]
        return [base]

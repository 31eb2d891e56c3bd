"""The output directory of a build: what is in it, whether it is fresh, and how it is changed.

Used by :mod:`momentgen.build`.  Only the standard library, platformdirs and filelock are
imported, so that a build with nothing to do ends at once.

    OUT/__init__.py            re-exports one op per rule
    OUT/compiler.json          digest of the compiler that built them (momentgen.build.code) -> names
    OUT/NAME/...               the files of one rule
    OUT/NAME/manifest.json     digests of what went in and of every file that came out

A rule's directory is replaced as a whole.  The new one is written as ``.new-NAME``,
the old one moves to ``.old/NAME``, and the new one takes its name.  The package looks
for its rules in ``.old`` too, so that it can be imported at any time.  A build that is
killed leaves either the old directory or the new one, and
:meth:`Output.recover` clears up the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from momentgen.cache import locked
from momentgen.errors import BuildError, MomentgenError

_FORMAT = 2
_MANIFEST = "manifest.json"
_INIT = "__init__.py"
_COMPILER = "compiler.json"
_INIT_FIRST_LINE = '"""Moments of activations, written by `momentgen build`: do not edit.'
_LOCK = ".lock"
#: what may stand in an output directory without being any rule's
_TOLERATED = frozenset({".gitattributes", ".gitignore", "__pycache__", "py.typed", _LOCK})
_NEW, _OLD = ".new-", ".old"


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of ``data``.

    >>> sha256(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class VariantSummary:
    """One variant in a closing table.

    Attributes:
        name: of the variant.
        bounds: the certified bound of each output, printable (``"1.63 ulp"``).
        operations: float32 operations an element, under ``forward`` and ``backward``.
    """

    name: str
    bounds: Mapping[str, str]
    operations: Mapping[str, int]


@dataclass(frozen=True)
class Manifest:
    """What a rule's directory was made from, and what must be in it.

    Attributes:
        rule: name of the rule.
        source: SHA-256 of the rule file, its evidence included where there is any.
        files: SHA-256 of each other file of the directory, by name.
        variants: for the closing table.
    """

    rule: str
    source: str
    files: Mapping[str, str]
    variants: tuple[VariantSummary, ...] = ()

    def to_json(self) -> str:
        """The manifest's text, the same for the same manifest; it carries a digest of itself."""
        fields = {"format": _FORMAT, **asdict(self), "files": dict(sorted(self.files.items()))}
        fields["sha256"] = sha256(json.dumps(fields, sort_keys=True).encode())
        return json.dumps(fields, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: if the text is anything else, say truncated or edited.

        >>> m = Manifest("relu", "ab", {"exact.c": "ef"})
        >>> Manifest.from_json(m.to_json()) == m
        True
        """
        try:
            fields = json.loads(text)
            digest = fields.pop("sha256")
            if fields.pop("format") != _FORMAT:
                raise ValueError(f"expected manifest format {_FORMAT}")
            variants = tuple(VariantSummary(**variant) for variant in fields.pop("variants"))
            manifest = cls(**fields, variants=variants)
            again = json.loads(manifest.to_json())["sha256"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a manifest: {error}") from error
        if digest != again:
            raise ValueError("its contents do not match its digest")
        return manifest


@dataclass(frozen=True)
class Finding:
    """One reason why an output directory is not what a build would write.

    Attributes:
        kind: ``stale`` (made from another rule or compiler), ``touched``, ``missing`` or ``orphan``.
        path: the file or directory, relative to the output directory.
        cause: in words.
    """

    kind: str
    path: str
    cause: str


class Output:
    """An output directory.

    Args:
        path: the directory; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    # ------------------------------------------------------------------ reading

    def manifest(self, rule: str) -> Manifest | None:
        """The manifest of ``rule``, or None without one that can be trusted."""
        try:
            manifest = Manifest.from_json((self.path / rule / _MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return manifest if manifest.rule == rule else None

    def findings(self, rule: str, source: str, *, behind: bool) -> list[Finding]:
        """Why the directory of ``rule`` is not fresh; empty when it is.

        Args:
            rule: name of the rule.
            source: SHA-256 of its rule file as it is now.
            behind: whether another state of the compiler built it, or nobody knows which.
        """
        folder = self.path / rule
        if not folder.is_dir():
            return [Finding("missing", rule, "the rule has not been built")]
        if not (folder / _MANIFEST).is_file():
            return [Finding("missing", f"{rule}/{_MANIFEST}", "no record of what the directory was built from")]
        manifest = self.manifest(rule)
        if manifest is None:
            return [Finding("touched", f"{rule}/{_MANIFEST}", "it is not as the build wrote it")]
        found = []
        if manifest.source != source:
            found.append(Finding("stale", rule, "the rule file or its evidence has changed since"))
        if behind:
            found.append(Finding("stale", rule, "the compiler or a library that it computes with has changed since"))
        for name, digest in manifest.files.items():
            path = folder / name
            if not path.is_file():
                found.append(Finding("missing", f"{rule}/{name}", "the build wrote it, it is gone"))
            elif sha256(path.read_bytes()) != digest:
                found.append(Finding("touched", f"{rule}/{name}", "it is not as the build wrote it"))
        known = {*manifest.files, _MANIFEST, "__pycache__"}
        found += [Finding("orphan", f"{rule}/{name}", "no rule produces it") for name in _entries(folder) - known]
        return sorted(found, key=lambda finding: (finding.path, finding.kind))

    def strangers(self, rules: Iterable[str]) -> list[str]:
        """Entries at the top of the directory that belong to none of ``rules``, sorted."""
        return sorted(_entries(self.path) - {*rules, _INIT, _COMPILER} - _TOLERATED)

    def compilers(self) -> dict[str, str]:
        """Digest of the compiler that built each rule; a rule is missing where that is not known."""
        try:
            found = json.loads((self.path / _COMPILER).read_text(encoding="utf-8"))
            return {str(rule): str(digest) for digest, rules in found.items() for rule in rules}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def init_findings(self, rules: Iterable[str]) -> list[Finding]:
        """Why the package's ``__init__.py`` is not what a build of ``rules`` would write."""
        path = self.path / _INIT
        if not path.is_file():
            return [Finding("missing", _INIT, "the package has no __init__.py")]
        if path.read_bytes() != self._init_text(rules).encode():
            return [Finding("touched", _INIT, "it is not as the build wrote it")]
        return []

    # ------------------------------------------------------------------ changing

    def locked(self, *, waiting: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Keep other builds out while the body runs; ``waiting`` is called once if another one holds the lock."""
        return locked(self.path / _LOCK, waiting)

    def create(self) -> None:
        """Make the directory.

        Raises:
            MomentgenError: if it cannot be made.
        """
        with _explained(f"output directory {self.path}: cannot be made"):
            self.path.mkdir(parents=True, exist_ok=True)

    def prepare(self) -> None:
        """Check, before any work, that rules can be written here.

        Raises:
            MomentgenError: if the directory cannot be written, or holds a package that momentgen did not write.
        """
        probe = self.path / f"{_NEW}probe"
        with _explained(f"output directory {self.path}: cannot be written"):
            shutil.rmtree(probe, ignore_errors=True)
            probe.mkdir()
            probe.rmdir()
        init = self.path / _INIT
        if init.is_file() and init.stat().st_size and not init.read_bytes().startswith(_INIT_FIRST_LINE.encode()):
            raise MomentgenError(
                f"output directory {self.path}: its {_INIT} was not written by momentgen; choose another with --out"
            )

    def recover(self) -> None:
        """Clear up after a build that was killed: restore what it had moved away, remove what it had begun.

        Raises:
            MomentgenError: if it cannot.
        """
        for name in sorted(_entries(self.path / _OLD)):
            home = self.path / name
            if not home.exists():
                with _explained(f"cannot restore {home}"):
                    (self.path / _OLD / name).rename(home)
        for name in sorted(_entries(self.path)):
            if name == _OLD or name.startswith(_NEW):
                self.remove(name)

    def write(self, manifest: Manifest, files: Mapping[str, str]) -> None:
        """Replace the directory of a rule as a whole.

        Args:
            manifest: with the digests of ``files``.
            files: text of every other file, by name.

        Raises:
            BuildError: (stage ``write``) if it cannot be; the old directory then stands as it was.
        """
        rule = manifest.rule
        home, new, old = self.path / rule, self.path / f"{_NEW}{rule}", self.path / _OLD / rule
        there = _entries(home) - {"__pycache__"}
        if there - set(files) and _MANIFEST not in there:
            cause = f"{home} exists and was not written by momentgen; remove it or choose another --out"
            raise BuildError(rule, "write", cause)
        try:
            new.mkdir()
            for name, text in {**files, _MANIFEST: manifest.to_json()}.items():
                if Path(name).name != name:
                    raise BuildError(rule, "write", f"expected plain file names, got {name!r}")
                (new / name).write_bytes(text.encode())
            if home.exists():
                old.parent.mkdir(exist_ok=True)
                home.rename(old)
            new.rename(home)
        except OSError as error:
            if old.exists() and not home.exists():
                old.rename(home)
                old.parent.rmdir()
            raise BuildError(rule, "write", f"cannot write {home}: {_reason(error)}") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old.parent, ignore_errors=True)

    def write_init(self, rules: Iterable[str]) -> None:
        """Write the package's ``__init__.py`` over those of ``rules`` that are built.

        Raises:
            MomentgenError: if it cannot be written.
        """
        self._replace(_INIT, self._init_text(rules))

    def write_compilers(self, compilers: Mapping[str, str]) -> None:
        """Write which compiler built each rule: its digest by name.

        Raises:
            MomentgenError: if it cannot be written.
        """
        digests = sorted({*compilers.values()})
        found = {digest: sorted(rule for rule, by in compilers.items() if by == digest) for digest in digests}
        self._replace(_COMPILER, json.dumps(found, indent=1) + "\n")

    def _replace(self, name: str, text: str) -> None:
        new = self.path / f"{_NEW}{name}"
        with _explained(f"cannot write {self.path / name}"):
            try:
                new.write_bytes(text.encode())
                new.replace(self.path / name)
            except OSError:
                with contextlib.suppress(OSError):
                    new.unlink(missing_ok=True)
                raise

    def remove(self, name: str) -> None:
        """Remove an entry, given by its path relative to the directory.

        Raises:
            MomentgenError: if it cannot be removed.
        """
        path = self.path / name
        with _explained(f"cannot remove {path}"):
            if path.is_dir() and not path.is_symlink():
                if not path.name.startswith(_NEW):  # a kill must not leave half of it under its name
                    path = path.rename(self.path / f"{_NEW}{path.name}")
                shutil.rmtree(path)
            else:
                path.unlink()

    def _init_text(self, rules: Iterable[str]) -> str:
        built: Sequence[str] = sorted(rule for rule in rules if (self.path / rule / _INIT).is_file())
        imports = "".join(f"from .{rule} import {rule} as {rule}\n" for rule in built)
        exports = "".join(f'    "{rule}",\n' for rule in built)
        return (
            f"{_INIT_FIRST_LINE}\n\n"
            "Each op takes the mean and variance of its input and returns those of its output::\n\n"
            '    NAME(mean, var, *, variant="exact", **params) -> Moments\n'
            '"""\n\n'
            f'__path__.append(f"{{__path__[0]}}/{_OLD}")  # where a build that was killed may have left a rule\n\n'
            f"{imports}\n"
            f"__all__ = [\n{exports}]\n"
        )


def _entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Say what could not be done where the disk refuses it."""
    try:
        yield
    except OSError as error:
        raise MomentgenError(f"{what}: {_reason(error)}") from error

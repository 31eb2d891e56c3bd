"""The state of the compiler that built a package of ops: one record per package, ``compiler.json``.

It says what can change the output: the meaning of the compiler's modules, and the versions of the libraries it computes
with.  Which modules these are follows from what the compiler imports (:mod:`momentgen.keep.meaning`), so that those
which only check, show or measure do not count.

Beside each module's meaning stands a digest of its text.  A module with the recorded text is not parsed, which makes a
build with nothing to do quick.  Another text of the same meaning changes nothing, not even the record.

The record names the rules that an earlier state built, with what has changed since.  There are some after a build that
failed, was interrupted or was for one rule alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from momentgen.keep.meaning import Sources
from momentgen.keep.versions import library_versions

_FORMAT = 2
_PACKAGE = Path(__file__).parents[1]
#: what a worker of a build calls; all that these import, directly or not, is the compiler
ROOTS = (
    "momentgen.compiler.certify.evidence",
    "momentgen.compiler.pipeline",
    "momentgen.compiler.reduction",
    "momentgen.rule.rule",
)
UNKNOWN = "it is not known which compiler built it"


def compiler_sources() -> Sources:
    """The sources of the compiler that runs."""
    return Sources(_PACKAGE)


@dataclass(frozen=True)
class CompilerState:
    """What a package was built by.

    Attributes:
        versions: of the libraries.
        modules: full name of a module -> digests of its meaning and of its text, a space between them.
        behind: rule -> what has changed since it was built; the rules not named are of this state.
    """

    versions: Mapping[str, str]
    modules: Mapping[str, str]
    behind: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, sources: Sources) -> CompilerState:
        """The state of the compiler that lies in ``sources``, with the libraries that are installed."""
        modules = sources.reached(ROOTS)
        meanings = sources.meanings(modules)
        return cls(library_versions(), {name: f"{meanings[name]} {sources.digest(name)}" for name in modules})

    def changes(self, sources: Sources) -> tuple[str, ...]:
        """What is not as in this state, one short phrase each; empty where the output would be the same."""
        found = []
        # A module whose text or meaning is as recorded imports what it did, so that no other module has come in.
        for name, known in self.modules.items():
            means, text = known.split(" ")
            now = sources.digest(name)
            if now is None or (now != text and not sources.means(name, means)):
                found.append(name)
        found += [
            f"{name} {self.versions.get(name, 'of no known version')} is now {version}"
            for name, version in library_versions().items()
            if self.versions.get(name) != version
        ]
        return tuple(found)

    def with_behind(self, behind: Mapping[str, Iterable[str]]) -> CompilerState:
        """The same state, with these rules not built by it yet; those behind nothing are left out."""
        left = {rule: tuple(sorted(set(causes))) for rule, causes in sorted(behind.items())}
        return dataclasses.replace(self, behind={rule: causes for rule, causes in left.items() if causes})

    def to_json(self) -> str:
        """The record's text, the same for the same state; it carries a digest of itself."""
        fields = {"format": _FORMAT, **asdict(self)}
        fields["sha256"] = _own_digest(fields)
        return json.dumps(fields, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> CompilerState:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: if the text is anything else, say truncated or edited.

        >>> state = CompilerState({"numpy": "2.0"}, {"momentgen.rule": "ab cd"}, {"relu": ("momentgen.rule",)})
        >>> CompilerState.from_json(state.to_json()) == state
        True
        """
        try:
            fields = json.loads(text)
            if fields.pop("sha256") != _own_digest(fields):
                raise ValueError("its contents do not match its digest")
            if fields.pop("format") != _FORMAT:
                raise ValueError(f"expected format {_FORMAT}")
            behind = {rule: tuple(causes) for rule, causes in fields.pop("behind").items()}
            return cls(**fields, behind=behind)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no record of a compiler: {error}") from error


def _own_digest(fields: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

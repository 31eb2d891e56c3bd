"""Certified variants kept from build to build, by what they were made from.

A key is a digest of the rule, of the evidence, of the libraries' versions, and of the meaning of the code that
stabilises in this way, lowers and certifies: what it imports, directly or not, and no more
(:mod:`momentgen.keep.meaning`).  A change of another strategy, or of what is emitted, leaves the key as it is.  Whether
a way serves the rule at all is found anew each time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json

from momentgen.compiler.certify.evidence import Evidence
from momentgen.compiler.pipeline import Outcome
from momentgen.compiler.plain import decoded, encoded, rule_data
from momentgen.compiler.strategies import Way
from momentgen.keep.kept import Kept
from momentgen.keep.meaning import Sources
from momentgen.keep.versions import library_versions
from momentgen.rule import Rule

#: beside those of the way itself
_OURS = (
    "momentgen.compiler.derive",
    "momentgen.compiler.plain",
    "momentgen.compiler.certify.variant",
    "momentgen.rule",
)


class Keeper:
    """The memory of earlier builds for one rule.

    Args:
        rule: the rule.
        evidence: what exhaustive runs found of it.
        kept: where outcomes are kept.
        sources: the compiler's, as they were before it was imported; by them it is known what has changed.
    """

    def __init__(self, rule: Rule, evidence: Evidence, kept: Kept, sources: Sources) -> None:
        self._rule, self._evidence, self._kept, self._sources = rule, evidence, kept, sources

    def recall(self, way: Way) -> Outcome | None:
        """What came of ``way`` in an earlier build, if that is known and nothing has changed since."""
        data = self._kept.get(self.key(way))
        if data is None:
            return None
        promised, variants, refusal, miss = decoded(data)
        return Outcome(promised, variants, refusal, miss)

    def keep(self, way: Way, outcome: Outcome) -> None:
        """Keep what came of ``way``, unless a source was edited meanwhile: which of the two ran nobody knows."""
        if self._sources.are_current():
            fields = (outcome.promised, outcome.variants, outcome.refusal, outcome.miss)
            self._kept.put(self.key(way), encoded(fields))

    def key(self, way: Way) -> str:
        """Digest of all that decides what comes of ``way``."""
        modules = self._sources.reached([*_OURS, *way.modules])
        meanings = self._sources.meanings(modules)
        rule = rule_data(dataclasses.replace(self._rule, citation="", doc="", digest=""))
        parts = [way.what, rule, self._evidence.to_json(), dict(library_versions()), dict(meanings)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

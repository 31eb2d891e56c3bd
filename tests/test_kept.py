"""What builds keep: manifests, and the digest of the code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import momentgen
from momentgen.build.code import code_files
from momentgen.build.output import Manifest, VariantSummary

# A manifest is what was written, or refused.
_names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
_variants = st.builds(
    VariantSummary,
    name=_names,
    bounds=st.dictionaries(_names, st.text()),
    operations=st.dictionaries(_names, st.integers(0, 2**40)),
)
_manifests = st.builds(
    Manifest,
    rule=_names,
    source=st.text(),
    files=st.dictionaries(_names, st.text()),
    variants=st.lists(_variants).map(tuple),
)


@settings(max_examples=30)
@given(_manifests)
def test_a_manifest_survives_its_text(manifest: Manifest) -> None:
    assert Manifest.from_json(manifest.to_json()) == manifest


@settings(max_examples=30)
@given(_manifests, st.data())
def test_a_manifest_with_any_line_missing_or_cut_is_refused(manifest: Manifest, data: st.DataObject) -> None:
    text = manifest.to_json()
    cut = data.draw(st.integers(0, len(text) - 2))
    with pytest.raises(ValueError, match=r"manifest|digest"):
        Manifest.from_json(text[:cut])


@given(st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_any_other_json_is_no_manifest(value: object) -> None:
    with pytest.raises(ValueError, match=r"manifest|digest"):
        Manifest.from_json(json.dumps(value))


# The compiler's digest covers the code that compiles rules.
PACKAGE = Path(momentgen.__file__).parent
#: imported as packages are loaded, though nothing that compiles is in them
BYSTANDERS = {"momentgen"}


def test_every_module_that_compiling_loads_is_in_the_digest() -> None:
    code = "import momentgen.compiler.pipeline, momentgen.rule.rule, sys\n"
    code += "print(*(f'{n}={m.__file__}' for n, m in sys.modules.items() if n.split('.')[0] == 'momentgen'))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300).stdout
    loaded = {name: Path(path) for name, _, path in (word.partition("=") for word in shown.split())}
    counted = set(code_files(PACKAGE))
    assert {name for name, path in loaded.items() if path not in counted} <= BYSTANDERS
    assert len(loaded) > 100

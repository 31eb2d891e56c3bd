"""A manifest is what was written, or refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from momentgen.build.output import Manifest, VariantSummary

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

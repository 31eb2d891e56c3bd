"""What builds keep: manifests, the digest of the code, and results that are found again whole and from nobody else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import momentgen
from momentgen.build import rule_compiler
from momentgen.build.output import Manifest, VariantSummary
from momentgen.build.rule_compiler import Compiled, RuleCompiler
from momentgen.errors import MomentgenError
from momentgen.keep.code import code_digest, code_files
from momentgen.keep.kept import Kept, kept_directory, open_kept

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


# The compiler's digest covers the code that compiles rules, and the cache gives the files of a fresh compile.
PACKAGE = Path(momentgen.__file__).parent
#: imported as packages are loaded, though nothing that compiles is in them
BYSTANDERS = {"momentgen"}
RULE = "import sympy\nfrom momentgen.rule import Accuracy, Rule, x\n"
RULE += 'rule = Rule("quick", f=sympy.Max(x, 0), accuracy=Accuracy(ulp={"exact": 400.0}))\n'


def test_every_module_that_compiling_loads_is_in_the_digest() -> None:
    code = "import momentgen.compiler.pipeline, momentgen.compiler.reduction, momentgen.rule.rule, sys\n"
    code += "print(*(f'{n}={m.__file__}' for n, m in sys.modules.items() if n.split('.')[0] == 'momentgen'))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300).stdout
    loaded = {name: Path(path) for name, _, path in (word.partition("=") for word in shown.split())}
    counted = set(code_files(PACKAGE))
    assert {name for name, path in loaded.items() if path not in counted} <= BYSTANDERS
    assert len(loaded) > 100


def compiled(path: Path, kept: Kept | None) -> Compiled:
    return RuleCompiler(code_digest(), kept)("quick", path, lambda stage: None)


@pytest.fixture(scope="module")
def rule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "quick.py"
    path.write_text(RULE)
    return path


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_a_cached_rule_has_the_files_and_the_variants_of_a_fresh_compile(
    rule: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = compiled(rule, kept)
    monkeypatch.setattr(RuleCompiler, "_anew", None)
    again = compiled(rule, kept)
    assert again.files == fresh.files
    assert [vars(variant) for variant in again.variants] == [vars(variant) for variant in fresh.variants]
    rule_changed = rule.with_name("other.py")
    rule_changed.write_text(f"{RULE}# a comment")
    with pytest.raises(TypeError):
        compiled(rule_changed, kept)


def test_nothing_is_cached_where_the_code_or_the_rule_was_edited_meanwhile(
    rule: Path, tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = tmp_path / "quick.py"
    edited.write_text(RULE)

    def anew(self: RuleCompiler, name: str, path: Path, progress: object) -> Compiled:
        path.write_text(f"{RULE}# edited")
        return rule_compiler._Cached({}, ())

    monkeypatch.setattr(RuleCompiler, "_anew", anew)
    monkeypatch.setattr(rule_compiler, "_imported", code_digest())
    compiled(edited, kept)
    monkeypatch.setattr(rule_compiler, "_imported", "another")
    compiled(edited, kept)
    assert list(tmp_path.glob("*.json.zz")) == []


# Results that are kept: found again, from nobody else's hands, whole, and not without end.
posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="ownership of files is POSIX's")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_directory_is_the_users_alone_and_where_the_environment_says(base: Path) -> None:
    open_kept().put("ab", [1.5])
    assert kept_directory() == base / "results"
    assert (base / "results").stat().st_mode & 0o077 == 0
    assert [path.stat().st_mode & 0o077 for path in (base / "results").iterdir()] == [0]
    assert open_kept().get("ab") == [1.5]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=20))
def test_values_come_back_bit_for_bit(value: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = Kept(Path(folder))
        kept.put("key", value)
        assert json.dumps(kept.get("key")) == json.dumps(value)


# Who is trusted is one function's to say, which tests/hostile/test_cache.py asks for every mode and owner.
@posix
@pytest.mark.parametrize("which", ["cache", "cache/results"])
def test_a_directory_that_others_can_write_is_not_used(base: Path, which: str) -> None:
    open_kept()
    (base.parent / which).chmod(0o770)
    with pytest.raises(MomentgenError, match="others may write to"):
        open_kept()


@posix
def test_a_file_that_others_can_write_is_not_read(base: Path) -> None:
    kept = open_kept()
    kept.put("ab", 1)
    (path,) = (base / "results").iterdir()
    path.chmod(0o602)
    assert kept.get("ab") is None


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(base: Path) -> None:
    base.write_text("a file")
    with pytest.raises(MomentgenError, match="cannot keep results"):
        open_kept()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:10],
        lambda data: b"",
        lambda data: data + b"more",
        lambda data: data[:32] + b"?" + data[33:],
        lambda data: data[:32] + zlib.compress(b"[2]"),
        lambda data: bytes([data[0] ^ 1]) + data[1:],
    ],
)
def test_a_damaged_file_is_removed_and_not_believed(base: Path, damage) -> None:  # type: ignore[no-untyped-def]
    kept = open_kept()
    kept.put("ab", [1])
    (path,) = (base / "results").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert kept.get("ab") is None
    assert not path.exists()
    kept.put("ab", [3])
    assert kept.get("ab") == [3]


def test_a_result_under_another_name_is_not_believed(base: Path) -> None:
    kept = open_kept()
    kept.put("ab", [1])
    (path,) = (base / "results").iterdir()
    path.rename(path.with_name(path.name.replace("ab", "cd")))
    assert kept.get("cd") is None


def test_the_least_recently_used_go_when_there_is_too_much(tmp_path: Path) -> None:
    kept = Kept(tmp_path, limit=50_000)
    for number in range(12):
        kept.put(str(number), os.urandom(5_000).hex())
        for name, age in (("0", 0), (str(number), 100 - number)):
            if (path := tmp_path / f"{name}.json.zz").exists():
                os.utime(path, (1e9 - age, 1e9 - age))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 60_000
    assert kept.get("0") is not None
    assert kept.get("1") is None
    assert kept.get("11") is not None


def test_a_full_disk_costs_time_and_nothing_else(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = open_kept()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    kept.put("ab", [1])
    assert kept.get("ab") is None
    assert list((base / "results").iterdir()) == []

"""Results that are kept: found again, from nobody else's hands, whole, and not without end."""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from momentgen.errors import MomentgenError
from momentgen.keep.kept import Kept, kept_directory, open_kept

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

"""Compiled rules, cached in the user's cache directory: plain data by key, as compressed JSON.

They become generated files.  So directory and file must belong to the user, and others must not be able to write to
them.  A damaged file is removed, and one that cannot be written is skipped.  A build without the cache takes longer and
is otherwise the same.  The least recently used files are removed when all together exceed :data:`LIMIT` bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from momentgen.cache import UntrustedError, cache_directory, check_trusted
from momentgen.errors import MomentgenError

#: bytes; the rules of this repository take about two million
LIMIT = 200_000_000
_SHARE = 0.8  # of the limit, down to which is cleared
_SUFFIX = ".json.zz"


def kept_directory() -> Path:
    """The directory of cached results, in that of :func:`momentgen.cache.cache_directory`."""
    return Path(os.path.realpath(cache_directory())) / "results"


def open_kept() -> Kept:
    """The user's cached results; the directory is made if need be.

    Raises:
        MomentgenError: if no directory belongs to this user alone; the message says why.
    """
    try:
        directory = kept_directory()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (directory.parent, directory):
            check_trusted(folder, "directory")
    except RuntimeError as error:  # this user has no home directory
        raise MomentgenError(f"no directory to keep results in: {error}") from error
    except UntrustedError as error:
        raise MomentgenError(f"cannot keep results: {error}") from error
    except OSError as error:
        raise MomentgenError(f"{directory}: cannot keep results: {error.strerror or error}") from error
    return Kept(directory)


class Kept:
    """Results in a directory, which must exist; its files may take ``limit`` bytes.

    >>> folder = tempfile.TemporaryDirectory()
    >>> kept = Kept(Path(folder.name))
    >>> kept.get("ab"), kept.put("ab", {"mean": 0.1}), kept.get("ab")
    (None, None, {'mean': 0.1})
    """

    def __init__(self, directory: Path, limit: int = LIMIT) -> None:
        self._directory, self._limit = directory, limit

    def get(self, key: str) -> Any | None:
        """The result of this key, or None without one that can be trusted."""
        path = self._path(key)
        try:
            check_trusted(path, "file")
            data = path.read_bytes()
            if _digest(key, data[32:]) != data[:32]:
                raise ValueError("its contents do not match its digest")
            os.utime(path)  # used now: it goes later than those that are not
        except OSError:
            return None
        except ValueError:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return json.loads(zlib.decompress(data[32:]))

    def put(self, key: str, value: Any) -> None:
        """Keep ``value``, which JSON can write, under this key.

        Raises:
            TypeError: if JSON cannot write it.
        """
        packed = zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 6)
        with contextlib.suppress(OSError):
            self._clear()
            handle, name = tempfile.mkstemp(dir=self._directory, prefix=".new-")  # of mode 0600
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_digest(key, packed) + packed)
                os.replace(name, self._path(key))
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}{_SUFFIX}"

    def _clear(self) -> None:
        """Remove the least recently used files where all together are over the limit."""
        files = []
        for path in self._directory.iterdir():
            with contextlib.suppress(OSError):  # another build removes them as well
                found = path.stat()
                files.append((found.st_mtime, found.st_size, path))
        total = sum(size for _, size, _ in files)
        if total <= self._limit:
            return
        for _, size, path in sorted(files):
            if total <= _SHARE * self._limit:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


def _digest(key: str, packed: bytes) -> bytes:
    return hashlib.sha256(key.encode() + packed).digest()

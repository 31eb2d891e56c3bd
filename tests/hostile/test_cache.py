"""The cache of compiled kernels among other users, many processes, kills, forks, and poor file systems."""

import ctypes
import errno
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from other_processes import counting_compiler, printed

from momentgen import cache as locks
from momentgen.runtime import FallbackWarning, kernel_cache
from momentgen.runtime.kernel_cache import compile_and_load
from momentgen.runtime.toolchain import Unavailable

posix = pytest.mark.skipif(os.name != "posix", reason="owners, modes and forks are POSIX's")

#: begins a program that forks: what one process is asked for, and how a parent waits for its children.
PROGRAM = """
import errno, os, signal, sys, threading, time, warnings
from pathlib import Path
from momentgen.runtime import kernel_cache
from momentgen.runtime.kernel_cache import compile_and_load

def value(number):
    return compile_and_load(f"f{number}", f"int f(void) {{ return {number}; }}")["f"]()

def child(work):
    process = os.fork()
    if process == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    return process

def wait(process, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "hangs"
"""


def run(program: str, **changes: Any) -> list[str]:
    """Lines that a program printed; it must not have failed."""
    return printed(PROGRAM + program, **changes).splitlines()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_cache, "_private", {})  # what other tests have left in this process
    return tmp_path / "cache"


def built(value: int = 7) -> int:
    return int(compile_and_load("seven", f"int seven(void) {{ return {value}; }}")["seven"]())


# ---------------------------------------------------------------- other users


@pytest.fixture
def planted(cache: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A library in the place of a cached one that creates a file when it is loaded, and that file."""
    built()
    (real,) = cache.iterdir()
    trace = tmp_path / "constructor_ran"
    source = tmp_path / "planted.c"
    source.write_text(
        "#include <stdio.h>\nint seven(void) { return 666; }\n"
        f'__attribute__((constructor)) static void run(void) {{ fclose(fopen("{trace}", "w")); }}\n'
    )
    library = tmp_path / "planted.so"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    name = re.sub(r"[0-9a-f]+\.so$", kernel_cache._digest(library.read_bytes()) + ".so", real.name)
    real.unlink()
    shutil.copyfile(library, cache / name)
    (cache / name).chmod(0o600)
    return cache / name, trace


def is_not_loaded(trace: Path, said: str) -> None:
    """A kernel is compiled beside the planted one, which is not run, and a warning says why."""
    with pytest.warns(FallbackWarning, match=said):
        assert built() == 7
    assert not trace.exists()


@posix
def test_a_planted_library_would_run_if_it_were_trusted(planted: tuple[Path, Path]) -> None:
    _, trace = planted
    assert built() == 666
    assert trace.exists()


@posix
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o720, 0o702])
def test_nothing_is_loaded_from_a_directory_that_others_may_write_to(mode: int, planted: tuple[Path, Path]) -> None:
    file, trace = planted
    file.parent.chmod(mode)
    is_not_loaded(trace, rf"others may write to .* `chmod go-w {file.parent}`")
    assert list(file.parent.iterdir()) == [file]  # nor is anything put there
    with pytest.MonkeyPatch.context() as patch:  # nor is it loaded for want of a compiler
        patch.setenv("CC", "/nowhere/cc")
        with pytest.raises(Unavailable):
            built(8)
    assert not trace.exists()


@posix
@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_may_write_to_is_not_loaded(mode: int, planted: tuple[Path, Path]) -> None:
    file, trace = planted
    file.chmod(mode)
    is_not_loaded(trace, rf"is not loaded: others may write to .* `chmod go-w {file}`")


@posix
@pytest.mark.parametrize("what", ["directory", "file", "file through a link"])
def test_nothing_is_loaded_that_belongs_to_another_user(
    what: str, planted: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, trace = planted
    theirs = file.parent if what == "directory" else file
    if what == "file through a link":
        theirs = file.rename(tmp_path / "theirs.so")
        file.symlink_to(theirs)
    lstat = os.lstat

    def owned(path: str | Path, **options: int) -> os.stat_result:
        found = lstat(path, **options)
        return os.stat_result([*found[:4], 4711, *found[5:]]) if Path(path) == theirs else found

    monkeypatch.setattr(kernel_cache.os, "lstat", owned)
    is_not_loaded(trace, "is no file" if what == "file through a link" else "belongs to user 4711")


@posix
def test_a_process_of_another_user_does_not_trust_this_ones_cache(
    planted: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, trace = planted
    if os.geteuid() == 0:  # root is trusted by everybody, and trusts nobody
        os.chown(file.parent, 4711, 4711)
    else:
        monkeypatch.setattr(kernel_cache.os, "geteuid", lambda: 4711)
    is_not_loaded(trace, r"set \$MOMENTGEN_CACHE to a directory of your own")


@posix
def test_a_link_to_a_directory_is_judged_by_where_it_leads(
    planted: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, trace = planted
    (tmp_path / "link").symlink_to(file.parent)
    monkeypatch.setenv("MOMENTGEN_CACHE", str(tmp_path / "link"))
    file.parent.chmod(0o777)
    is_not_loaded(trace, "others may write")


@posix
def test_the_cache_and_what_is_in_it_are_for_its_owner_alone_whatever_the_umask(cache: Path) -> None:
    before = os.umask(0)
    try:
        built()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (cache, *cache.iterdir())] == [0o700, 0o600]


# ---------------------------------------------------------------- many processes


TWELVE = """
begin = time.time() + 1
def work():
    time.sleep(max(0.0, begin - time.time()))
    os.write(1, f"{[value(number) for number in range(3)]}\\n".encode())  # one write, so that lines never mix
children = [child(work) for _ in range(12)]
print({wait(process, 120) for process in children})
"""


@posix
def test_twelve_processes_on_an_empty_cache_compile_each_kernel_once(cache: Path, tmp_path: Path) -> None:
    compiler, log = counting_compiler(tmp_path / "cc", 0.3)
    lines = run(TWELVE, CC=compiler)
    assert sorted(lines) == ["[0, 1, 2]"] * 12 + ["{0}"]
    assert len(log.read_text().splitlines()) == 3
    assert len(list(cache.glob("*.so"))) == len(list(cache.iterdir())) == 3


@posix
@pytest.mark.parametrize(
    "number", [errno.ENOLCK, *(pytest.param(e, marks=pytest.mark.slow) for e in (errno.EOPNOTSUPP, errno.ENOSYS))]
)
def test_where_the_file_system_has_no_locks_processes_only_compile_more_often(
    number: int, cache: Path, tmp_path: Path
) -> None:
    compiler, log = counting_compiler(tmp_path / "cc")
    without = (
        "import fcntl\nwarnings.simplefilter('ignore')\n"
        f"def refuse(*_): raise OSError({number}, 'no locks')\nfcntl.flock = refuse\n"
    )
    started = time.monotonic()
    lines = run(without + TWELVE.replace("range(12)", "range(4)"), CC=compiler)
    assert sorted(lines) == ["[0, 1, 2]"] * 4 + ["{0}"]
    assert 3 <= len(log.read_text().splitlines()) <= 12
    assert len(list(cache.glob("*.so"))) == len(list(cache.iterdir())) == 3
    assert time.monotonic() - started < kernel_cache._PATIENCE


@posix
def test_a_lock_that_nobody_gives_back_is_waited_for_no_longer_than_patience(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from filelock import FileLock

    monkeypatch.setattr(kernel_cache, "_MOMENT", 0.1)
    monkeypatch.setattr(kernel_cache, "_PATIENCE", 0.3)
    held: list[FileLock] = []
    acquired = locks._acquired

    def late(lock: FileLock, waiting: Callable[[], None], *how: float) -> bool:
        held.append(FileLock(lock.lock_file))
        held[-1].acquire()
        return acquired(lock, waiting, *how)

    monkeypatch.setattr(locks, "_acquired", late)
    assert built() == 7
    assert [record.getMessage() for record in caplog.records if "was held" in record.getMessage()] == [
        f"momentgen: {held[-1].lock_file} was held for 0.3 s; going on without it"
    ]
    held[-1].release()


def test_a_library_that_is_there_is_not_replaced(cache: Path) -> None:
    built()
    (file,) = cache.iterdir()
    before = (file.stat().st_ino, file.stat().st_mtime_ns)
    library = kernel_cache._publish(file.read_bytes(), file.name.rsplit("-", 1)[0])
    assert library["seven"]() == 7
    assert list(cache.iterdir()) == [file]
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == before


# ---------------------------------------------------------------- forks


@posix
def test_a_fork_during_a_first_compile_does_not_hang_the_child(cache: Path, tmp_path: Path) -> None:
    compiler, log = counting_compiler(tmp_path / "cc", 2)
    program = """
import torch
from momentgen.generated import square
def compute():
    print(square(torch.tensor([3.0]), torch.tensor([0.5])).mean.item(), flush=True)
thread = threading.Thread(target=compute)
thread.start()
while not Path(os.environ["LOG"]).read_text():
    time.sleep(0.02)
print(wait(child(compute), 60), flush=True)
thread.join()
"""
    assert sorted(run(program, CC=compiler, LOG=log)) == ["0", "9.5", "9.5"]
    assert len(log.read_text().splitlines()) == 1


@posix
def test_a_forked_child_keeps_its_private_directory_when_its_parent_ends(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    program = """
warnings.simplefilter("ignore")
print(value(1), flush=True)
ready, done = os.pipe()
def work():
    os.close(done)
    os.read(ready, 1)  # until the parent has ended
    print(value(1), value(2), flush=True)
child(work)
"""
    lines = run(program, MOMENTGEN_CACHE=tmp_path / "file" / "cache", TMPDIR=tmp_path / "tmp")
    assert lines == ["1", "1 2"]


# ---------------------------------------------------------------- kills


KILLS = """
cache, now = kernel_cache.cache_directory(), time.time()

def until(point):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if event != "os.kill" and event.startswith(("open", "os.", "shutil.", "subprocess.", "ctypes.dlopen")):
            seen += 1
            if seen > point:
                os.kill(os.getpid(), signal.SIGKILL)
    def work():
        sys.addaudithook(hook)
        value(1)
    return work

point, left = 0, 0
while wait(child(until(point)), 60) != 0:
    def again():
        assert value(1) == 1
        for path in cache.glob(".build-*"):  # nothing is left of this kernel, or little, for an hour
            assert path.is_file(), path
            os.utime(path, (now - 7200, now - 7200))
        assert value(2) == 2
        assert sorted(path.suffix for path in cache.iterdir()) == [".so", ".so"], sorted(cache.iterdir())
    left += any(cache.glob(".build-*")) if cache.exists() else 0
    assert wait(child(again), 60) == 0, point
    for path in cache.iterdir():
        path.unlink()
    cache.rmdir()
    point += STEP
print(point, left)
"""


@posix
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_point_leaves_a_cache_that_works_and_clears_itself(cache: Path, step: int) -> None:
    (line,) = run(KILLS.replace("STEP", str(step)))
    points, left = map(int, line.split())
    assert points > 20  # that many were tried
    assert left > 0  # some of them inside the cache


# ---------------------------------------------------------------- no place to write, no compiler


# Looked up here: between fork and exec a process should do little.
PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def without_privileges() -> None:
    """Let file modes hold for root as they do for others: takes two capabilities from what this process starts."""
    assert PRCTL is not None
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        PRCTL(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


OPS = """
import torch
from momentgen.generated import square
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(square(torch.tensor([3.0]), torch.tensor([0.5])).mean.item())
for warning in caught:
    print(warning.message)
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, Path | None]:
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    return {"MOMENTGEN_CACHE": None, "XDG_CACHE_HOME": None, "HOME": tmp_path / "home", "TMPDIR": tmp_path / "tmp"}


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's, and ~/.cache")
def test_in_a_read_only_home_a_private_directory_serves_and_goes_with_the_process(
    home: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "home").chmod(0o500)
    value, warned = run(OPS, preexec=without_privileges, **home)
    assert value == "9.5"
    assert f"{tmp_path}/home/.cache/momentgen cannot hold compiled kernels: [Errno 13] Permission denied" in warned
    assert "private directory" in warned
    assert not list((tmp_path / "tmp").iterdir())
    assert not list((tmp_path / "home").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's, and ~/.cache")
def test_a_warm_cache_serves_without_a_compiler_in_a_read_only_home_and_without_temporary_files(
    home: dict[str, Path], tmp_path: Path
) -> None:
    assert run(OPS, **home) == ["9.5"]
    cache = tmp_path / "home/.cache/momentgen"
    (library,) = cache.iterdir()
    for path, mode in ((library, 0o400), (cache, 0o500), (tmp_path / "home", 0o500), (tmp_path / "tmp", 0o500)):
        path.chmod(mode)
    (tmp_path / "bin").mkdir()
    assert run(OPS, preexec=without_privileges, CC=None, PATH=tmp_path / "bin", **home) == ["9.5"]

"""A build is incremental, atomic, deterministic, and survives what happens to it."""

import contextlib
import errno
import importlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from other_processes import printed
from stub_compiler import compile_stub

import momentgen
from momentgen.build import BuildResult, Reporter, build, check
from momentgen.build.code import code_digest, code_files
from momentgen.build.output import Output
from momentgen.build.processors import same_bits_environment
from momentgen.build.workers import Lost, run_all
from momentgen.errors import BuildError, MomentgenError, RuleError

PACKAGE = Path(momentgen.__file__).parent


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    folder = tmp_path / "rules"
    folder.mkdir()
    for name in ("relu", "abs", "heaviside"):
        (folder / f"{name}.py").write_text(name)
    return folder


def run(rules: Path, **options: object) -> BuildResult:
    return build(rules, compiler=compile_stub, **{"jobs": 1, **options})  # type: ignore[arg-type]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def statuses(result: BuildResult) -> dict[str, str]:
    return {rule.rule: rule.status for rule in result.rules}


def kinds(rules: Path, **options: object) -> set[tuple[str, str]]:
    return {(f.kind, f.path) for f in check(rules, **options)}  # type: ignore[arg-type]


def test_builds_a_package_that_exports_every_op_and_with_nothing_to_do_changes_nothing(rules: Path) -> None:
    result = run(rules)
    assert result.ok
    assert result.output == rules.parent / "generated"
    program = "import sys; sys.path.insert(0, sys.argv[1]); import generated as g; print(g.__all__, g.relu, g.abs)"
    assert printed(program, rules.parent) == "['abs', 'heaviside', 'relu'] ['relu'] ['abs']\n"
    before = {path: path.stat().st_mtime_ns for path in result.output.rglob("*") if "__pycache__" not in path.parts}
    assert set(statuses(run(rules)).values()) == {"fresh"}
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert kinds(rules) == set()


@pytest.mark.parametrize("options", [{"jobs": 3}, {"jobs": 2, "timeout": 600.0}])
def test_builds_are_byte_identical_whatever_the_number_of_jobs_and_a_time_out_that_is_not_reached(
    rules: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    run(rules, output=tmp_path / "one", jobs=1)
    run(rules, output=tmp_path / "two", **options)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of momentgen's sources, which builds take for the compiler."""
    copy = tmp_path / "code" / "momentgen"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "laws", "nn", "runtime", "report"))
    monkeypatch.setattr("momentgen.build.package.code_digest", lambda: code_digest(copy))
    return copy


BEHIND = "the compiler or a library that it computes with has changed since"


def causes(rules: Path, **options: object) -> dict[str, str]:
    return {f.path: f.cause for f in check(rules, **options) if f.kind == "stale"}  # type: ignore[arg-type]


def edit(code: Path, module: str = "compiler/lower/words") -> None:
    path = code / f"{module}.py"
    path.write_text(f"{path.read_text()}\n# another comment\n")


@pytest.mark.parametrize(
    ("module", "counts"),
    [
        ("compiler/certify/bounds", True),
        ("rule/symbols", True),
        ("native/includes", True),
        ("commands/verify", False),
        ("build/package", False),
        ("build/code", False),
    ],
)
def test_every_rule_is_stale_once_a_file_of_the_compiler_has_other_bytes(
    rules: Path, code: Path, module: str, counts: bool
) -> None:
    run(rules)
    edit(code, module)
    assert causes(rules) == (dict.fromkeys(("abs", "heaviside", "relu"), BEHIND) if counts else {})
    assert set(statuses(run(rules)).values()) == {"built" if counts else "fresh"}
    assert kinds(rules) == set()


def test_another_version_of_a_library_makes_every_rule_stale(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(rules)
    monkeypatch.setattr("momentgen.build.code.library_versions", lambda: {"numpy": "9.9"})
    assert causes(rules)["abs"] == BEHIND


def test_a_rule_that_was_not_built_again_stays_behind(rules: Path, code: Path) -> None:
    run(rules)
    edit(code)
    (rules / "abs.py").write_text("abs fail")
    assert statuses(run(rules)) == {"abs": "failed", "heaviside": "built", "relu": "built"}
    (rules / "abs.py").write_text("abs")
    assert causes(rules) == {"abs": BEHIND}
    edit(code)
    assert statuses(run(rules, only="relu")) == {"relu": "built"}
    assert causes(rules) == {"abs": BEHIND, "heaviside": BEHIND}
    assert statuses(run(rules)) == {"abs": "built", "heaviside": "built", "relu": "fresh"}
    assert kinds(rules) == set()


def test_a_rule_built_while_the_compiler_was_edited_is_not_taken_for_fresh(rules: Path, code: Path) -> None:
    def compiler(rule: str, path: Path, progress: Callable[[str], None]) -> object:
        if rule == "relu":
            edit(code)
        return compile_stub(rule, path, progress)

    build(rules, jobs=1, compiler=compiler)  # type: ignore[arg-type]
    assert "relu" in causes(rules)


def replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


ALL_STALE = {("stale", name) for name in ("abs", "heaviside", "relu")}
BROKEN_RECORDS = ("{", "[1]", '{"format": 1}')


@pytest.mark.parametrize(
    ("damage", "findings"),
    [
        (lambda out: (out / "relu/exact.c").write_text("edited"), {("touched", "relu/exact.c")}),
        (lambda out: (out / "relu/exact.json").write_text("{"), {("touched", "relu/exact.json")}),
        (lambda out: (out / "relu/exact.c").unlink(), {("missing", "relu/exact.c")}),
        (lambda out: (out / "relu/manifest.json").unlink(), {("missing", "relu/manifest.json")}),
        (lambda out: (out / "relu/manifest.json").write_bytes(b"\xff{"), {("touched", "relu/manifest.json")}),
        (lambda out: (out / "relu/manifest.json").write_text("[1]"), {("touched", "relu/manifest.json")}),
        (lambda out: replace(out / "relu/manifest.json", "}\n", "\n"), {("touched", "relu/manifest.json")}),
        (lambda out: (out / "relu").rename(out.parent / "elsewhere"), {("missing", "relu")}),
        (lambda out: (out / "relu/extra.c").write_text(""), {("orphan", "relu/extra.c")}),
        (lambda out: (out / "__init__.py").unlink(), {("missing", "__init__.py")}),
        (lambda out: (out / ".new-relu").mkdir(), {("orphan", ".new-relu")}),
        (lambda out: replace(out / "relu/manifest.json", "2.5 ulp", "0.5 ulp"), {("touched", "relu/manifest.json")}),
        (lambda out: replace(out / "compiler.json", '"relu"', '"tanh"'), {("stale", "relu")}),
        (lambda out: (out / "compiler.json").unlink(), ALL_STALE),
        *((lambda out, text=text: (out / "compiler.json").write_text(text), ALL_STALE) for text in BROKEN_RECORDS),
    ],
)
def test_check_finds_damage_and_a_build_mends_it(rules: Path, damage, findings) -> None:  # type: ignore[no-untyped-def]
    run(rules)
    out = rules.parent / "generated"
    before = snapshot(out)
    damage(out)
    assert findings <= kinds(rules)
    run(rules)
    assert snapshot(out) == before
    assert kinds(rules) == set()


def test_the_output_of_a_removed_rule_is_an_orphan_and_goes_with_the_next_build(rules: Path) -> None:
    run(rules)
    (rules / "abs.py").unlink()
    assert kinds(rules) == {("orphan", "abs"), ("touched", "__init__.py")}
    assert run(rules).removed == ("abs",)
    assert not (rules.parent / "generated/abs").exists()
    assert kinds(rules) == set()


def test_what_momentgen_did_not_write_is_reported_but_never_removed(rules: Path) -> None:
    run(rules)
    mine = rules.parent / "generated/notes.txt"
    mine.write_text("mine")
    assert kinds(rules) == {("orphan", "notes.txt")}
    assert run(rules).strangers == ("notes.txt",)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_rule_keeps_its_old_output_and_the_others_are_built(rules: Path, jobs: int) -> None:
    run(rules)
    out = rules.parent / "generated"
    old = snapshot(out / "abs")
    (rules / "abs.py").write_text("abs fail")
    (rules / "relu.py").write_text("relu changed")
    (rules / "tanh.py").write_text("tanh fail")
    result = run(rules, jobs=jobs)
    assert not result.ok
    assert statuses(result) == {"abs": "failed", "heaviside": "fresh", "relu": "built", "tanh": "failed"}
    assert str(result.rules[0].error) == "rule abs, stage derive: the integral diverges in `exp(x**2)`"
    assert snapshot(out / "abs") == old
    assert "abs" in (out / "__init__.py").read_text()
    assert "tanh" not in (out / "__init__.py").read_text()
    assert kinds(rules) == {("stale", "abs"), ("missing", "tanh")}


@pytest.mark.parametrize(
    ("text", "jobs", "said"),
    [
        ("tool", 1, "rule abs, stage emit: C: no such file"),  # of a tool that knows no rules
        ("defect", 1, "rule abs, stage derive: .*ZeroDivisionError: a defect"),
        ("die", 2, "rule abs, .*worker process died"),
    ],
)
def test_what_a_rule_dies_of_is_named_and_the_others_are_built(rules: Path, text: str, jobs: int, said: str) -> None:
    (rules / "abs.py").write_text(text)
    result = run(rules, jobs=jobs)
    assert statuses(result) == {"abs": "failed", "heaviside": "built", "relu": "built"}
    assert isinstance(result.rules[0].error, BuildError)
    assert re.match(said, str(result.rules[0].error))
    assert ("stub_compiler.py" in result.rules[0].defect) == (text == "defect")


def test_a_rule_that_exceeds_the_time_out_is_stopped_and_the_others_are_built(rules: Path) -> None:
    run(rules)
    out = rules.parent / "generated"
    old = snapshot(out / "relu")
    (rules / "relu.py").write_text("slow")
    (rules / "abs.py").write_text("abs changed")
    (rules / "tanh.py").write_text("tanh")
    result = run(rules, jobs=2, timeout=1.0)
    assert statuses(result) == {"abs": "built", "heaviside": "fresh", "relu": "failed", "tanh": "built"}
    error = {rule.rule: rule.error for rule in result.rules}["relu"]
    assert str(error) == "rule relu, stage derive: it was stopped, not being done within 1 s (--timeout)"
    assert snapshot(out / "relu") == old
    assert kinds(rules) == {("stale", "relu")}
    assert multiprocessing.active_children() == []


def test_what_a_stopped_rule_had_started_ends_with_it_and_leaves_no_files(rules: Path) -> None:
    (rules / "relu.py").write_text("child slow")
    result = run(rules, only="relu", timeout=1.5)  # one rule alone is stopped as well
    assert statuses(result) == {"relu": "failed"}
    child, scratch = (rules / "relu.child").read_text().split()
    until(lambda: not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text())
    assert not Path(scratch).exists()


def test_stages_of_workers_are_reported(rules: Path) -> None:
    told: list[tuple[str, str]] = []

    class Listener(Reporter):
        def stage(self, rule: str, stage: str) -> None:
            told.append((rule, stage))

    run(rules, jobs=2, reporter=Listener())
    assert set(told) == {(rule, stage) for rule in ("abs", "heaviside", "relu") for stage in ("derive", "emit")}


def test_only_builds_one_rule_and_keeps_the_others(rules: Path) -> None:
    run(rules)
    for name in ("abs", "relu"):
        (rules / f"{name}.py").write_text("changed")
    assert statuses(run(rules, only="abs")) == {"abs": "built"}
    assert kinds(rules) == {("stale", "relu")}
    assert kinds(rules, only="abs") == set()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"only": "gelu"}, RuleError, "there are: abs, heaviside, relu"),
        ({"rules": "absent"}, RuleError, "absent"),
        ({"rules": "empty"}, RuleError, "empty"),
        ({"rules": "rules/relu.py"}, RuleError, r"relu\.py"),
        ({"output": "rules"}, MomentgenError, "another directory"),
        ({"output": "rules/relu.py/out"}, MomentgenError, r"directory .*relu.py/out: cannot be made: Not a directory"),
    ],
)
def test_what_cannot_be_built_is_an_error_that_creates_nothing(
    rules: Path, options: dict[str, str], error: type[Exception], said: str
) -> None:
    (rules.parent / "empty").mkdir()
    before = sorted(rules.parent.rglob("*"))
    given = {name: text if name == "only" else rules.parent / text for name, text in options.items()}
    with pytest.raises(error, match=said):
        run(**{"rules": rules, **given})
    assert sorted(rules.parent.rglob("*")) == before


def test_a_disk_that_cannot_be_written_stops_the_build_before_any_work_and_a_full_one_leaves_the_old_output(
    rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(rules)
    before, compiled = snapshot(rules.parent / "generated"), list[str]()
    (rules / "abs.py").write_text("abs changed")
    write_bytes = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.name == "exact.json":
            write_bytes(self, data[:1])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(self, data)

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert re.search("stage write.*No space left on device", str(run(rules).rules[0].error))
    monkeypatch.setattr(Output, "create", lambda self: None)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(MomentgenError, match="cannot be written: Permission denied"):
        build(rules, jobs=1, compiler=lambda name, *_: compiled.append(name))  # type: ignore[arg-type,return-value,func-returns-value]
    assert compiled == []
    assert snapshot(rules.parent / "generated") == before


def test_a_directory_or_package_of_somebody_else_is_never_replaced(rules: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "relu").mkdir(parents=True)
    (theirs / "relu/model.py").write_text("precious")
    result = run(rules, output=theirs)
    assert statuses(result)["relu"] == "failed"
    assert (theirs / "relu/model.py").read_text() == "precious"

    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("precious")
    with pytest.raises(MomentgenError, match="not written by momentgen"):
        run(rules, output=package)
    assert snapshot(package) == {"__init__.py": b"precious"}


def test_a_swap_that_was_cut_in_two_is_undone(rules: Path) -> None:
    run(rules)
    out = rules.parent / "generated"
    before = snapshot(out)
    (out / ".old").mkdir()
    (out / "relu").rename(out / ".old/relu")
    (out / ".new-relu").mkdir()
    (out / ".new-relu/exact.c").write_text("half")
    assert statuses(run(rules))["relu"] == "fresh"
    assert snapshot(out) == before


_BUILD = (
    "import sys; from pathlib import Path; from momentgen.build import build; from stub_compiler import compile_stub\n"
)
_BUILD += "if __name__ == '__main__': build(Path(sys.argv[1]), jobs=int(sys.argv[2]), compiler=compile_stub)\n"


def start_build(rules: Path, jobs: int) -> subprocess.Popen[bytes]:
    program = rules.parent / "run_build.py"
    program.write_text(_BUILD)
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, str(program), str(rules), str(jobs)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True)


def until(condition) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def session(leader: int) -> set[int]:
    """The processes that live in the session of ``leader``."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, _group, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and int(its_session) == leader:
                found.add(int(stat.parent.name))
    return found


def test_a_killed_build_leaves_whole_rules_no_processes_and_a_free_lock(rules: Path) -> None:
    run(rules)
    out = rules.parent / "generated"
    old = snapshot(out / "relu")
    (rules / "relu.py").write_text("slow")
    (rules / "heaviside.py").write_text("slow")
    process = start_build(rules, 2)
    until((rules / "heaviside.started").exists)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: session(process.pid) == set())
    assert snapshot(out / "relu") == old
    (rules / "relu.py").write_text("relu")
    (rules / "heaviside.py").write_text("heaviside")
    run(rules)
    assert kinds(rules) == set()


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals are POSIX's")
@pytest.mark.parametrize("processes", [1, 3])  # the resource tracker is the second, a worker the third
def test_an_interrupted_build_says_so_without_a_traceback(tmp_path: Path, processes: int) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/slow.py").write_text("import time\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "momentgen", "build", "rules"]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, **pipes)
    until((tmp_path / "generated/.lock").exists)
    until(lambda: len(session(process.pid)) >= processes)
    said = None
    while said is None:  # Python drops an interrupt within a callback of its import lock, and says so: again then
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            said, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in re.sub("Exception ignored in: .*_get_module_lock.*\n.*\n.*\nKeyboardInterrupt", "", said)


def test_concurrent_builds_wait_for_each_other(rules: Path) -> None:
    (rules / "relu.py").write_text("slow")
    process = start_build(rules, 1)
    until((rules / "relu.started").exists)
    (rules / "relu.py").write_text("relu")
    waited: list[Path] = []

    class Listener(Reporter):
        def waiting(self, output: Path) -> None:
            waited.append(output)
            process.kill()

    result = run(rules, reporter=Listener())
    process.wait()
    assert waited == [rules.parent / "generated"]
    assert result.ok
    assert kinds(rules) == set()


# The compiler's digest covers the code that compiles rules.
#: imported as packages are loaded, though nothing that compiles is in them
BYSTANDERS = {"momentgen"}


def test_every_module_that_compiling_loads_is_in_the_digest() -> None:
    code = "import momentgen.compiler.pipeline, momentgen.rule.rule, sys\n"
    code += "print(*(f'{n}={m.__file__}' for n, m in sys.modules.items() if n.split('.')[0] == 'momentgen'))"
    shown = printed(code)
    loaded = {name: Path(path) for name, _, path in (word.partition("=") for word in shown.split())}
    counted = set(code_files(PACKAGE))
    assert {name for name, path in loaded.items() if path not in counted} <= BYSTANDERS
    assert len(loaded) > 100


# Workers of a build compute what they would on another processor, and nothing that another task left behind.
NUMPY = importlib.import_module("numpy._core._multiarray_umath")
WIDE = [name for name in NUMPY.__cpu_dispatch__ if name == "X86_V4" or name.startswith("AVX512")]
needs_avx2 = pytest.mark.skipif(not NUMPY.__cpu_features__.get("AVX2"), reason="of x86 processors with AVX2")


def features_and_core(name: str, report: Callable[[str], None]) -> tuple[list[str], str | None, str | None]:
    """What NumPy uses in a worker, how OpenBLAS is told, and a variable; NumPy is imported before this is called."""
    features = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
    return [key for key, used in features.items() if used], os.environ.get("OPENBLAS_CORETYPE"), os.environ.get(name)


@needs_avx2
def test_a_worker_uses_no_vectors_of_512_bits_and_one_core_of_openblas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPY_ENABLE_CPU_FEATURES", raising=False)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    before = dict(os.environ)
    environment = {**same_bits_environment(), "MOMENTGEN_TESTED": "yes"}
    ((_, found),) = run_all(["MOMENTGEN_TESTED"], 1, features_and_core, environment=environment)
    assert not isinstance(found, Lost)
    features, core, variable = found
    assert WIDE  # else NumPy's names have changed, and nothing is left out
    assert not {*features} & {*WIDE}
    assert "AVX2" in features
    assert (core, variable) == ("Haswell", "yes")
    assert dict(os.environ) == before


@needs_avx2
def test_what_the_user_has_set_stays() -> None:
    assert "OPENBLAS_CORETYPE" not in same_bits_environment({"OPENBLAS_CORETYPE": "Prescott"})
    assert "NPY_DISABLE_CPU_FEATURES" not in same_bits_environment({"NPY_ENABLE_CPU_FEATURES": "AVX2"})
    disabled = same_bits_environment({"NPY_DISABLE_CPU_FEATURES": "SOMETHING"})["NPY_DISABLE_CPU_FEATURES"].split()
    assert disabled == ["SOMETHING", *WIDE]


@needs_avx2
def test_numpy_accepts_the_environment_without_a_word() -> None:
    assert printed("import numpy", **same_bits_environment(), PYTHONWARNINGS="error") == ""


def traces(task: int, report: Callable[[str], None]) -> tuple[int, str]:
    """This process, and what earlier tasks left in it."""
    before = getattr(os, "trace", "")
    os.trace = f"of {task}"  # type: ignore[attr-defined]
    return os.getpid(), before


def test_each_task_has_a_fresh_interpreter() -> None:
    found = [result for _, result in run_all(range(3), 1, traces)]
    assert all(not isinstance(result, Lost) and result[1] == "" for result in found)
    assert len({result[0] for result in found if not isinstance(result, Lost)}) == 3

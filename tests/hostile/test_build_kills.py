"""A build that is killed, before any of its changes to the disk, leaves a package that can be imported."""

import os
from pathlib import Path

import pytest
from other_processes import printed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the builds to be killed are forked")

#: Builds in forked children, each killed some points later than the one before it, until one ends by itself.
#: The first argument is the directory to work in, the second by how many points each build gets further.
PROGRAM = """
import importlib, os, shutil, signal, sys
from pathlib import Path
from stub_compiler import compile_stub
from momentgen.build import output
from momentgen.build import build, check
from momentgen.build.output import Output

base, rules, out = Path(sys.argv[1]), Path(sys.argv[1], "rules"), Path(sys.argv[1], "generated")
sys.modules["momentgen.build.package"].code_digest = lambda: "a compiler"  # reading all of it takes time
sys.dont_write_bytecode = True
sys.path.insert(0, str(base))

CHANGES = {"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}

def texts(**changes):
    found = {"abs": "abs one", "gone": "gone one", "heaviside": "heaviside one", "relu": "relu one"}
    found |= changes
    return {name: text for name, text in found.items() if text}

OLD, NEW = texts(), texts(abs="abs two", gone="", relu="relu two", tanh="tanh one")

def write(folder, found):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in found.items():
        (folder / f"{name}.py").write_text(text)

def run(folder):
    build(folder, out, jobs=1, compiler=compile_stub)

def snapshot():
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}

def child(work):
    process = os.fork()
    if process == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

def until(point):
    seen = 0
    def count():
        nonlocal seen
        seen += 1
        if seen > point:
            os.kill(os.getpid(), signal.SIGKILL)
    def hook(event, arguments):
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            count()
    def half(self, data, write_bytes=Path.write_bytes):
        write_bytes(self, data[: len(data) // 2])
        count()
        return write_bytes(self, data)
    def work():
        Path.write_bytes = half
        sys.addaudithook(hook)
        run(rules)
    return work

def importable():
    # Each rule is what one of the two builds made of it, and none is missing that both have.
    package = importlib.import_module("generated")
    ops = {name: " ".join(getattr(package, name)) for name in package.__all__}
    assert ops.keys() >= OLD.keys() & NEW.keys(), ops
    for name, text in ops.items():
        assert text in {OLD.get(name), NEW.get(name)}, (name, text)
        folder = out / name if (out / name).exists() else out / ".old" / name
        manifest = Output(folder.parent).manifest(name)
        assert manifest is not None, name
        for file, digest in manifest.files.items():
            assert output.sha256((folder / file).read_bytes()) == digest, (name, file)

def again():
    run(rules)
    assert snapshot() == wanted
    assert check(rules, out) == ()

write(rules, NEW)
run(rules)
wanted = snapshot()
write(base / "old_rules", OLD)
run(base / "old_rules")
shutil.copytree(out, base / "old")
point, broken = 0, []
while True:
    shutil.rmtree(out)
    shutil.copytree(base / "old", out)
    ended = child(until(point))
    if child(importable) or child(again):
        broken.append(point)
    if ended == 0:
        break
    assert ended == -signal.SIGKILL
    point += int(sys.argv[2])
print(point, *broken)
"""


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_build_killed_at_any_point_leaves_every_rule_importable_and_the_next_build_mends_the_rest(
    step: int, tmp_path: Path
) -> None:
    points, *broken = printed(PROGRAM, tmp_path, step).split()
    assert int(points) > 50
    assert broken == []

"""How long three newcomers take to a first right answer: the steps of each, in fresh environments.

- An engineer has a trained vision transformer, and sensors with noise.
- A student has an activation of their own.
- A statistician has a table.

Each installs the wheel with the extras that README names, copies code from the tutorial that README links, and runs it.
What a newcomer has before momentgen (a trained network, scikit-learn) is not timed.  An answer is right if sampling,
closed forms or held-out rows say so.  Reading is counted in words and code in lines: how fast a person is, nobody
knows here.

    make wheels
    python benchmarks/newcomers.py dist/*.whl
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Newcomer:
    """Who comes, and with what.

    Attributes:
        extras: of momentgen that the README names for them.
        tutorial: the page.
        has: how many blocks of it make what the newcomer has already.
        asks: how many blocks after these lead to the first answer.
        brings: packages that the newcomer has already.
        check: code after these blocks that sets ``right`` and ``found``, a sentence.
    """

    extras: str
    tutorial: str
    has: int
    asks: int
    brings: tuple[str, ...]
    check: str


NEWCOMERS = {
    "an engineer with a trained ViT and noisy sensors": Newcomer(
        extras="",
        tutorial="sensor-noise.md",
        has=1,
        asks=1,
        brings=("scikit-learn",),
        check="""
with torch.no_grad():
    draws = torch.stack([vit(test + 0.1 * torch.randn_like(test)) for _ in range(2000)])
share = ((out.std - draws.std(0)).abs() <= 2 * out.std_error).float().mean().item()
right, found = share >= 0.9, f"two stated errors cover {share:.0%} of σ by 2,000 samples"
""",
    ),
    "a student with an activation of their own": Newcomer(
        extras="[compiler]",
        tutorial="own-activation.md",
        has=0,
        asks=8,
        brings=(),
        check="""
import math
# E max(x, -x / 2) of N(m, 1): 3/2 of ReLU's mean, less m / 2
m = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
exact = 1.5 * (m * torch.special.ndtr(m) + (-m * m / 2).exp() / math.sqrt(2 * math.pi)) - m / 2
off = (steep(m.float(), torch.ones(3)).mean - exact).abs().max().item()
points = torch.tensor([[1.0, 1.5], [0.0, 0.0]])
with torch.no_grad(), momentgen.method("ap1"):
    noise = 0.2 * torch.randn(20_000, 1, 2)
    true = net((points + noise).flatten(0, 1)).mean.reshape(20_000, 2).std(0)
away = (out.std.flatten() / true - 1).abs().max().item()
right = off < 1e-5 and away < 0.1
found = f"means within {off:.0e} of the closed form, σ within {away:.0%} of 20,000 samples"
""",
    ),
    "a statistician with a table": Newcomer(
        extras="[estimators]",
        tutorial="table.md",
        has=0,
        asks=1,
        brings=(),
        check="""
share = float(((low <= y_test) & (y_test <= high)).mean())
right, found = 0.88 <= share <= 1, f"95 % intervals hold for {share:.0%} of {len(y_test)} held-out rows"
""",
    ),
}

#: runs what is given in segments, each timed, as one script would
_RUN = """
import json, os, resource, subprocess, sys, time
def processor():
    every = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in every)
namespace, found = {"__name__": "__main__"}, {}
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
sys.path.insert(0, os.getcwd())
for name, blocks in json.loads(open(sys.argv[1]).read()):
    started, before = time.perf_counter(), processor()
    for kind, code in blocks:
        if kind == "python":
            exec(compile(code, name, "exec"), namespace)
        for line in code.splitlines() if kind == "console" else ():
            if line.startswith("$ "):
                subprocess.run(line[2:], shell=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    taken = {"seconds": time.perf_counter() - started, "processor seconds": processor() - before}
    found[name] = {key: round(value, 1) for key, value in taken.items()}
print(json.dumps([found, bool(namespace["right"]), namespace["found"]]))
"""


def main() -> None:
    from _common import console, environment, save
    from _fresh import Fresh

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default="python3", help="the interpreter's command")
    asked = parser.parse_args()
    wheel, found = asked.wheel.resolve(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, (who, newcomer) in enumerate(NEWCOMERS.items()):
            place = folder / str(number)
            place.mkdir()
            fresh = Fresh(asked.python, place, folder / "files")
            wanted = f"{wheel}{newcomer.extras}"
            fresh.download(wanted, *newcomer.brings)
            installed = fresh.install(wanted)
            if newcomer.brings:
                fresh.install(*newcomer.brings)
            found[who] = _answer(newcomer, fresh, installed)
            console.print_json(data={who: found[who]})
    save("newcomers", {"environment": environment(), "found": found})


def _answer(newcomer: Newcomer, fresh: Any, installed: dict[str, float]) -> dict[str, Any]:
    page = (ROOT / "docs" / "tutorials" / newcomer.tutorial).read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    matches = list(re.finditer(r"^```(python|console)\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    blocks = [(match[1], match[2]) for match in matches]
    answer = blocks[newcomer.has : newcomer.has + newcomer.asks]
    until = page[: matches[newcomer.has + newcomer.asks - 1].end()]
    segments = [("has", blocks[: newcomer.has]), ("answer", answer), ("check", [("python", newcomer.check)])]
    (fresh.folder / "segments.json").write_text(json.dumps(segments))
    (fresh.folder / "run.py").write_text(_RUN)
    took, right, said = json.loads(fresh.run("run.py", "segments.json").splitlines()[-1])
    if not right:
        raise SystemExit(f"{newcomer.tutorial}: the answer is wrong: {said}")
    lines = [line for _, code in answer for line in code.splitlines() if line.strip()]
    return {
        "steps": [
            {"step": f"pip install momentgen{newcomer.extras}", **installed},
            {"step": f"read README and docs/tutorials/{newcomer.tutorial}", "words": _words(readme) + _words(until)},
            {"step": "copy the code", "lines": len(lines)},
            {"step": "run it", **took["answer"]},
        ],
        "minutes without reading": round((installed["seconds"] + took["answer"]["seconds"]) / 60, 1),
        "right": said,
    }


def _words(page: str) -> int:
    """Words of a page without its code."""
    return len(re.sub(r"^```.*?(^```|\Z)", "", page, flags=re.MULTILINE | re.DOTALL).split())


if __name__ == "__main__":
    main()

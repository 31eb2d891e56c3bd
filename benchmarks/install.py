"""An install from nothing: seconds, import and first call with and without a PATH, and bytes by package.

Each Python gets an empty environment and a wheel of momentgen.  pip downloads first, then installs from these files
alone, and README's first code runs.  The first call of ``gelu`` is timed in processes of their own, with an empty cache
of kernels: with this machine's PATH, and with an empty one, where no compiler can be found.  Imports and calls are in
processor seconds.  Then pip removes momentgen and builds it from the sources, and README's code runs again.

    make wheels
    python benchmarks/install.py dist/*.whl --sources dist/any/*.tar.gz --python python3.11 python3.13

pip installs torch because momentgen asks for it.  Its own settings choose the build: PIP_CONSTRAINT names a file with
`torch==2.13.0+cpu`.  Results of other builds stay in the file.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TURNS = 3

_FIRST = """
import json, sys, time, warnings
warnings.simplefilter("error")
begun = time.process_time()
import torch
torched = time.process_time()
import momentgen.generated
from momentgen.generated import gelu
imported = time.process_time()
x = torch.zeros(3), torch.ones(3)
torch.add(*x)
called = time.process_time()
gelu(*x)
done = time.process_time()
found = {"import torch": torched - begun, "import momentgen": imported - torched, "first call": done - called}
print(json.dumps(found))
"""


#: processor seconds of compiling a package's modules, as pip does after it has unpacked them
_COMPILE = """
import contextlib, sys, sysconfig, time
from pathlib import Path
texts = [path.read_bytes() for path in Path(sysconfig.get_path("purelib"), sys.argv[1]).rglob("*.py")]
begun = time.process_time()
for text in texts:
    with contextlib.suppress(SyntaxError, ValueError):  # templates and tests of wrong code
        compile(text, "module", "exec")
print(time.process_time() - begun)
"""


_BUILD = """
import platform, torch
print(f"{platform.python_version()}, torch for {'CUDA' if torch.version.cuda else 'the CPU'}")
print(torch.__version__)
"""


def main() -> None:
    from _common import RESULTS, console, environment, save

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--sources", type=Path, required=True, help="the archive of the sources")
    parser.add_argument("--python", nargs="+", default=["python3"], help="interpreters, each by its command")
    asked = parser.parse_args()
    found = {}
    for python in asked.python:
        with tempfile.TemporaryDirectory() as folder:
            one = measured(python, asked.wheel.resolve(), asked.sources.resolve(), Path(folder))
        found[one.pop("build")] = one
        console.print_json(data=one)
    known = json.loads((RESULTS / "install.json").read_text())["found"]
    sizes = {"wheel": asked.wheel.stat().st_size, "sources": asked.sources.stat().st_size}
    save("install", {"environment": environment(), **sizes, "found": {**known, **found}})


def measured(python: str, wheel: Path, sources: Path, folder: Path) -> dict[str, Any]:
    """All figures of one interpreter."""
    from _fresh import Fresh

    fresh = Fresh(python, folder, folder / "files")

    def first_call(**environment: str) -> dict[str, float]:
        turns = [json.loads(fresh.run("-c", _FIRST, **environment)) for _ in range(TURNS)]
        return {name: round(statistics.median(turn[name] for turn in turns), 4) for name in turns[0]}

    found: dict[str, Any] = {"download": fresh.download(str(wheel))}
    found["install after the download"] = fresh.install(str(wheel))
    found["build"], found["torch"] = fresh.run("-c", _BUILD).splitlines()
    sizes = fresh.sizes()
    found["of it byte-compiling"] = {
        name: round(float(fresh.run("-c", _COMPILE, name)), 1) for name in ("torch", "sympy", "numpy", "momentgen")
    }
    (folder / "readme.py").write_text(readme())
    found["README's code"] = fresh.timed("readme.py")
    found["README's code without PATH"] = fresh.timed("readme.py", PATH="", CC="")
    found["with PATH"], found["without PATH"] = first_call(), first_call(PATH="", CC="")
    found["compiled here"] = sorted(path.name for path in folder.glob("cache/*.so"))
    found["bytes"] = dict(sorted(sizes.items(), key=lambda each: -each[1]))
    found["bytes in all"] = sum(sizes.values())
    fresh.run("-m", "pip", "uninstall", "--quiet", "--yes", "momentgen")
    found["install of the sources"] = fresh.timed("-m", "pip", "install", "--quiet", str(sources))
    found["README's code from the sources"] = fresh.timed("readme.py")
    return found


def readme() -> str:
    """README's first code."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert match
    return match[1]


if __name__ == "__main__":
    main()

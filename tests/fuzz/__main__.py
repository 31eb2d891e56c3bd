"""Many seeds: counts of networks, refusals, notes and faults, and every fault as a short network.

In ``tests``, with torch, numpy, platformdirs, filelock and a C compiler, and no network::

    python -m fuzz --start 1000 --count 1000 --processes 16 --out fuzz.json

counts seeds 1000 to 1999, into ``counts`` of the file.  ``--show 17`` prints the network of a seed as a script.
"""

import argparse
import json
import sys
from pathlib import Path

from fuzz.count import counted
from fuzz.generate import program
from fuzz.judge import METHODS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1, help="how many seeds at a time")
    parser.add_argument("--out", type=Path, default=Path("fuzz.json"), help="a JSON file, whose other keys stay")
    parser.add_argument("--show", type=int, help="print the network of one seed as a script, and run nothing")
    parser.add_argument("--method", default="ap2", choices=METHODS, help="of the script")
    given = parser.parse_args()
    if given.show is not None:
        print(program(given.show).listing(given.method))
        return 0
    found = counted(range(given.start, given.start + given.count), given.processes)
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    given.out.write_text(json.dumps({**kept, "counts": found}, indent=1, ensure_ascii=False) + "\n")
    functions, faults = len(found["functions"].split()), len(found["faults"])
    print(json.dumps({**found, "functions": functions, "faults": faults}, indent=1))
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())

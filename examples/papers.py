"""Every table and figure of the five papers: what is printed, what we find, at which scale, and how to run it again.

    python examples/papers.py --list                        # all of them
    python examples/papers.py --list --paper vbp            # of one paper: ff, vbp, correlated, adf, bow-tie
    python examples/papers.py --run lenet --data DIR        # the command of a row; DIR/ holds mnist.npz and uci/
    python examples/papers.py --run lenet --data DIR --dry  # prints the command

A command has the settings of the committed file.  It goes on where it stopped, and keeps rows that are there; for a
run from nothing give it a path of its own behind ``--``, as in ``--run lenet --data DIR -- --out /tmp/lenet.json``.
The rows are in ``examples/_papers``, by paper.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from _papers import RESULTS, Item, Run, bow_tie, correlated, feedforward, filtering, variance
from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent
PAPERS = {
    "ff": "Feed-forward propagation (Shekhovtsov & Flach)",
    "vbp": "Variance back-propagation (Haussmann, Hamprecht & Kandemir)",
    "correlated": "Correlated parameters (Posch & Pilz)",
    "adf": "Assumed density filtering (Ghosh, Delle Fave & Yedidia)",
    "bow-tie": "Bow tie networks (Smith, Lawson & Linderman)",
}
ITEMS: dict[str, tuple[Item, ...]] = {
    "ff": feedforward.ITEMS,
    "vbp": variance.ITEMS,
    "correlated": correlated.ITEMS,
    "adf": filtering.ITEMS,
    "bow-tie": bow_tie.ITEMS,
}
COLUMNS = ("item", "printed", "here", "scale here, or why not done", "seeds", "file", "--run")


def runs() -> dict[str, Run]:
    """Name -> what ``--run`` runs."""
    return {item.run.name: item.run for items in ITEMS.values() for item in items if item.run.name}


def commands(name: str, data: Path | None, more: list[str]) -> list[list[str]]:
    """What runs the items of this name, one command for each of its seeds.

    Raises:
        SystemExit: for another name, or without a folder of data where the script needs one.
    """
    run = runs().get(name)
    if run is None:
        raise SystemExit(f"papers.py: no item {name!r}; one of {', '.join(sorted(runs()))}")
    if run.data and data is None:
        raise SystemExit(f"papers.py: {name} needs --data DIR, with mnist.npz and uci/")
    script, *settings = shlex.split(run.command.replace("RESULTS", shlex.quote(str(RESULTS))))
    line = [sys.executable, str(FOLDER / script), *(["--data", str(data)] if run.data else []), *settings, *more]
    return [[part.replace("SEED", str(seed)) for part in line] for seed in run.each or (0,)]


def show(paper: str | None, console: Console) -> None:
    for key, title in PAPERS.items():
        if paper in (None, key):
            table = Table(*COLUMNS, title=title)
            for item in ITEMS[key]:
                table.add_row(*item.cells())
            console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show every table and figure")
    parser.add_argument("--paper", choices=list(PAPERS), help="only those of this paper")
    parser.add_argument("--run", metavar="NAME", help="run the command of this item")
    parser.add_argument("--data", type=Path, help="folder with mnist.npz and uci/")
    parser.add_argument("--dry", action="store_true", help="print the command, run nothing")
    parser.add_argument("more", nargs="*", help="further arguments of the command")
    arguments = parser.parse_args()
    if arguments.run:
        for line in commands(arguments.run, arguments.data, arguments.more):
            print(shlex.join(line), flush=True)
            code = 0 if arguments.dry else subprocess.run(line, check=False).returncode
            if code:
                raise SystemExit(code)
    else:
        show(arguments.paper, Console(width=None if Console().is_terminal else 200))


if __name__ == "__main__":
    main()

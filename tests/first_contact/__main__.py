"""What each program says on the code that runs, written beside what it said on other code.

From ``tests``, with the old commit in a worktree OLD:

PYTHONPATH=OLD python -m first_contact --side before --commit 5fa4b7c --out ../benchmarks/results/first_contact.json
python -m first_contact --side after --commit COMMIT --out ../benchmarks/results/first_contact.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import momentgen
from first_contact.checks import CHECKS, said

#: checkouts of the programs and of the code that runs, which are left out of what is written
PLACES = [Path(__file__).resolve().parents[2], Path(momentgen.__file__).resolve().parents[1]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m first_contact", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a JSON file; what is there of the other side stays")
    parser.add_argument("--side", choices=("before", "after"), default="after", help="which code runs")
    parser.add_argument("--commit", required=True, help="of the code that runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    rows = {row["tries"]: row for row in known.get("rows", ())}
    for name, check in CHECKS.items():
        right, text = said(check)
        rows[name] = {"tries": name, "before": "", "after": "", **rows.get(name, {})}
        for place in PLACES:
            text = text.replace(f"{place}/", "")
        rows[name][given.side] = "passes" if right else f"fails: {' '.join(text.split())[:160]}"
        print(f"{name}: {rows[name][given.side]}")
    found = {
        **known,
        "how": "tests/first_contact: `python -m first_contact` on either commit",
        **{side: known.get(side, {}) for side in ("before", "after")},
        given.side: {"commit": given.commit, "torch": torch.__version__},
        "rows": [rows[name] for name in CHECKS],
    }
    given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

"""Do the first pages read easily?  ``make lint`` runs this: sentences of at most 25 words, and no banned phrases.

    python tests/english.py [PAGE ...]

Code is one word, and code blocks are left out.  Each cell of a table and each item of a list stands by itself.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/networks.md", "docs/ops.md")
LONGEST = 25
#: phrase -> what to write
BANNED = {
    r"(is|are|was|were) said": "say who says it",
    r"(what|which|it) is kept|are kept": "cached",
    r"knows? nothing of|nothing knows": "does not depend on",
    r"is none": "is valid only if",
    r"is no (relative|bound|random|sum|matter)": "is not a",
    r"nothing \w+ gives": "X never gives",
    r"asks of": "needs",
    r"ladders?": "multi-scale expansion",
    r"but (for|where)": "except",
    r"goes? by": "uses",
    r"(once|passes|number|numbers|words?) an? (layer|element|rule|call|channel|pass)": "per",
}


def sentences(page: str) -> Iterator[tuple[int, str]]:
    """The sentences of a page in Markdown, with the line at which the text around them begins."""
    page = re.sub(r"^```.*?^```|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), page, flags=re.S | re.M)
    blocks: list[tuple[int, str]] = []
    fresh = True
    for number, line in enumerate(page.splitlines(), 1):
        if not line.strip() or line.startswith("    "):
            fresh = True
        elif line.startswith("|"):
            blocks += [(number, cell) for cell in line.split("|")]
            fresh = True
        elif fresh or re.match(r"\s*([-*#>]|\d+\.)\s", line):
            blocks.append((number, line))
            fresh = line.startswith("#")
        else:
            blocks[-1] = (blocks[-1][0], f"{blocks[-1][1]} {line.strip()}")
    for number, block in blocks:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", block))
        yield from ((number, part) for part in re.split(r"(?<=[.!?])\**\s+(?=\S)", plain.strip()))


def main() -> None:
    """Print what is found on stderr; the exit code is 1 if there is anything."""
    found = []
    for name in sys.argv[1:] or PAGES:
        for line, sentence in sentences((ROOT / name).read_text(encoding="utf-8")):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > LONGEST:
                found.append(f"{name}:{line}: {len(words)} words, at most {LONGEST}: {' '.join(words[:8])} ...")
            for phrase, instead in BANNED.items():
                if match := re.search(rf"\b({phrase})\b", sentence, re.IGNORECASE):
                    found.append(f"{name}:{line}: '{match[0]}': {instead}")
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main()

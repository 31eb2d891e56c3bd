"""Do pages and docstrings read easily?  ``make lint`` runs this: sentences of at most 25 words, and no banned phrases.

    python tests/english.py [PAGE or FILE.py ...]

Code is one word, and code blocks are left out.  Each cell of a table and each item of a list stands by itself.  Of a
Python file the docstrings of public names and the messages to users are read.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: what is older than the guide; a change of a rule's messages makes every fit stale
LATER = ("docs/history.md", "momentgen/rule/expressions.py", "momentgen/rule/names.py")
#: whose docstrings are older than the guide; their messages are read
LATER_DOCSTRINGS = ("momentgen/compiler/",)
LONGEST = 25
#: functions that take a message; errors are all that is raised
SAY = ("warn", "warn_once", "note", "Option", "Argument", "Unavailable", "say")
#: phrase -> what to write
BANNED = {
    r"(is|are|was|were) said": "say who says it",
    r"(what|which|it) is kept|are kept": "cached",
    r"knows? nothing of|nothing knows": "does not depend on",
    r"(?<!there )is none": "is valid only if",
    r"is no (relative|bound|random|sum|matter|longer than|rule|module|directory|file|real)": "is not a",
    r"nothing \w+ gives": "X never gives",
    r"asks of": "needs",
    r"(what|which) is (paid|asked) for": "say what it costs, or who asks",
    r"where nothing is (said|written)|unless nothing": "by default",
    r"which of (them|these|those)": "say which",
    r"ladders?": "multi-scale expansion",
    r"but (for|where)": "except",
    r"goes? by": "uses",
    r"is to be (had|found|known|seen)": "is available",
    r"(once|passes|numbers?|words?|one|two|times) an? (layer|element|rule|call|channel|pass|row|core|unit|node)": "per",
    r"(once|passes|numbers?|words?|one|two|times) an? (example|output|chain|datum|replicate|draw)": "per",
}


def sentences(page: str) -> Iterator[tuple[int, str]]:
    """The sentences of a page in Markdown, with the line at which the text around them begins."""
    page = re.sub(r"^ *```.*?^ *```|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), page, flags=re.S | re.M)
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
        plain = re.sub(r"(code, )+(?=code)", "", plain)  # a list of names is one
        yield from ((number, part) for part in re.split(r"(?<=[.!?])[*)]*\s+(?=\S)", plain.strip()))


def public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The public functions and classes of a module's or a class's body, those within them included."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node
            yield from public(node.body) if isinstance(node, ast.ClassDef) else ()


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings of a module and its public names as pages, with the lines before each."""
    tree = ast.parse(source)
    for node in (tree, *public(tree.body)):
        if text := ast.get_docstring(node):
            text = re.sub(r"^ *>>>.*(\n *\S.*)*", lambda found: "\n" * found[0].count("\n"), text, flags=re.M)
            text = re.sub(r"^==+ .*?(\n\n|\Z)", lambda found: "\n" * found[0].count("\n"), text, flags=re.S | re.M)
            text = re.sub(r"``([^`]*)``|:\w+:`([^`]*)`", "`code`", text)
            # What stands under Args and its like: a name, a colon and a text.
            text = re.sub(r"^    (?=\S)(\S+(?: \([^)]*\))?:)", r"- \1", text, flags=re.M)
            text = re.sub(r"^        (?=\S)", "  ", text, flags=re.M)
            yield node.body[0].lineno - 1, text


def message(node: ast.expr) -> str:
    """The text of a string as a user may read it, with ``code`` for values that are put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(message(part) for part in node.values)
    return "code"


def messages(source: str) -> Iterator[tuple[int, str]]:
    """The messages of errors, warnings and notes, and the help of the command line, with the lines before each."""
    for node in ast.walk(ast.parse(source)):
        call = node.exc if isinstance(node, ast.Raise) else node
        if isinstance(call, ast.Call) and (call is not node or ast.unparse(call.func).split(".")[-1] in SAY):
            for part in (*call.args, *(keyword.value for keyword in call.keywords)):
                if len(text := message(part)) > len("code"):
                    yield part.lineno - 1, re.sub(r"^ +", "", text, flags=re.M)


def main() -> None:
    """Print what is found on stderr; the exit code is 1 if there is anything."""
    chosen = [Path(name).resolve() for name in sys.argv[1:]]
    everything = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "momentgen").rglob("*.py")]
    found = []
    for path in chosen or sorted(everything):
        name = path.relative_to(ROOT).as_posix()
        if not chosen and name.startswith(LATER):
            continue
        text = path.read_text(encoding="utf-8")
        pages = [(0, text)]
        if path.suffix == ".py":
            shown = chosen or not name.startswith(LATER_DOCSTRINGS)
            pages = [*(docstrings(text) if shown else ()), *messages(text)]
        for above, line, sentence in ((above, *part) for above, page in pages for part in sentences(page)):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > LONGEST:
                said = " ".join(words[:8])
                found.append(f"{name}:{above + line}: {len(words)} words, at most {LONGEST}: {said} ...")
            for phrase, instead in BANNED.items():
                if match := re.search(rf"\b({phrase})\b", sentence, re.IGNORECASE):
                    found.append(f"{name}:{above + line}: '{match[0]}': {instead}")
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main()

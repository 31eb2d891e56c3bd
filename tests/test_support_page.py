"""The committed page of what laws support is what :func:`momentgen.support` says; run this file to write it anew."""

from pathlib import Path

import momentgen

PAGE = Path(__file__).parents[1] / "docs" / "support.md"
BEGIN, END = "<!-- momentgen.support() -->", "<!-- end -->"


def parts(page: str) -> tuple[str, str, str]:
    """What stands before the table, the table, and what stands behind it."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    return before, table.strip(), after


def test_the_committed_table_is_that_of_support() -> None:
    _, table, _ = parts(PAGE.read_text(encoding="utf-8"))
    assert table == momentgen.support(), "docs/support.md is stale; run python tests/test_support_page.py"


if __name__ == "__main__":
    before, _, after = parts(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(f"{before}{BEGIN}\n\n{momentgen.support()}\n\n{END}{after}", encoding="utf-8")

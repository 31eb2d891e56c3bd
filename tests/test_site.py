"""The site: every page is in its navigation, every public name in its reference, and code that fails is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_pages import MODULES, api_pages, public_names, uri_of
from page_code import PageError, run_page
from site_pages import MOVED, is_made

from momentgen.extras import SITE

ROOT = Path(__file__).parents[1]


def test_every_page_is_in_the_navigation() -> None:
    # The tag names a function of pymdownx, which this test does not need.
    yaml.SafeLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named, written = set(pages(nav)), {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    assert written <= named
    assert {name for name in named - written if not is_made(name)} <= set(MOVED.values())


def pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for inside in (nav.values() if isinstance(nav, dict) else nav) for page in pages(inside)]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_entry(module: str) -> None:
    for name in public_names(module):
        page = api_pages()[uri_of(module, name)]
        entry, row = f"::: {module}.{name}\n", f'<a id="{module}.{name}"></a>'
        assert page.count(entry) + page.count(row) == 1


def test_what_a_page_prints_is_inserted() -> None:
    assert run_page("```python\nprint(6 * 7)\n```\n", "page").endswith("```text\n42\n```\n")


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("```python\n1 / 0\n```\n", "page:1: ZeroDivisionError"),
        ("\n```python\nprint(2)\n```\n\n```text\n3\n```\n", "page:2: the page has"),
        ("```console\n$ exit 3\n```\n", "exit code 3"),
    ],
)
def test_code_that_fails_or_prints_other_numbers_is_refused(page: str, message: str) -> None:
    with pytest.raises(PageError, match=message):
        run_page(page, "page")


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}  # as `make docs`
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    html = {str(page.relative_to(tmp_path)): page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    for module in MODULES:
        for name in public_names(module):
            assert f'id="{module}.{name}"' in html[uri_of(module, name).replace(".md", "/index.html")]
    assert f'<link rel="canonical" href="{SITE}/networks/">' in html["networks/index.html"]
    texts = {name: re.sub(r"<script.*?</script>|<[^>]+>", " ", text, flags=re.S) for name, text in html.items()}
    assert [name for name, text in texts.items() if len(text.split()) > 10_000 and "history" not in name] == []

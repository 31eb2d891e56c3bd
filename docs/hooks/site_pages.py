"""Hooks of mkdocs: the pages that are made (home, ops, gallery, benchmarks, API), links, and code that runs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from api_pages import api_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from op_pages import op_pages, op_uris
from page_code import PageError, run_page
from result_pages import result_pages

ROOT = Path(__file__).parents[2]
#: files of the repository that are pages of the site
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "LICENSE",
}


def made_uris() -> list[str]:
    """Pages that are written by code, in the order of the navigation."""
    return [*op_uris(), *result_pages(), *api_pages()]


def is_made(uri: str) -> bool:
    """Whether a page of the navigation, or a folder of pages, is written by code."""
    return any(made.startswith(uri) if uri.endswith("/") else made == uri for made in made_uris())


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that are made for each op and module into the navigation."""
    config.nav = _filled(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the pictures that pages show."""
    for source, uri in MOVED.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    for picture in sorted((ROOT / "examples" / "results").glob("*.png")):
        files.append(File.generated(config, f"examples/results/{picture.name}", abs_src_path=str(picture)))
    for uri, content in (op_pages() | result_pages() | api_pages()).items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run the code of a page, and let its links lead to pages of the site.

    Raises:
        PluginError: if the code fails, or prints other than the page says.
    """
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]  # it would hold this page alone
    source = {uri: name for name, uri in MOVED.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if not is_made(page.file.src_uri):
        try:
            markdown = run_page(markdown, source)
        except PageError as error:
            raise PluginError(str(error)) from error
    return re.sub(
        r"(\]\()(?!\w+:)([^)#\s]+)", lambda link: link[1] + _uri(link[2], source, page.file.src_uri), markdown
    )


def _uri(target: str, source: str, uri: str) -> str:
    """Where a link of the repository's file ``source`` leads, from the site's page ``uri``."""
    path = os.path.normpath(os.path.join(os.path.dirname(source), target))
    goal = MOVED.get(path, path.removeprefix("docs/"))
    return os.path.relpath(goal, os.path.dirname(uri) or ".").replace(os.sep, "/")


def _filled(item: Any) -> Any:
    """The navigation with the pages of a folder in the place of its name."""
    if isinstance(item, dict):
        return {title: _filled(inside) for title, inside in item.items()}
    if isinstance(item, list):
        return [_filled(inside) for inside in item]
    return [uri for uri in made_uris() if uri.startswith(item)] if item.endswith("/") else item

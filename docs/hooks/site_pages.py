"""Hooks of mkdocs: addresses, pages that are made (home, ops, gallery, benchmarks, API), links, and code that runs."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from api_pages import api_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from op_pages import op_pages, op_uris
from page_code import PageError, run_page
from result_pages import result_files, result_pages

import momentgen

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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
    """Take addresses and description from pyproject.toml, and put the pages that are made into the navigation."""
    config.site_url = PROJECT["urls"]["Documentation"] + "/"
    config.site_description = PROJECT["description"]
    config.repo_url = PROJECT["urls"]["Source"]
    config.repo_name = config.repo_url.removeprefix("https://github.com/")
    config.nav = _filled(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the pictures and results that pages show or lead to."""
    for source, uri in MOVED.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    for path in result_files():
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for uri, content in (op_pages() | result_pages() | api_pages()).items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run the code of a page, write the table of supported functions, and let links lead to pages of the site.

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
    markdown = markdown.replace("<!-- momentgen.support() -->", momentgen.support())
    return re.sub(
        r"(\]\()(?!\w+:)([^)#\s]+)", lambda link: link[1] + _uri(link[2], source, page.file.src_uri), markdown
    )


def _uri(target: str, source: str, uri: str) -> str:
    """Where a link of the repository's file ``source`` leads, from the site's page ``uri``."""
    path = os.path.normpath(os.path.join(os.path.dirname(source), target))
    goal = MOVED.get(path, path.removeprefix("docs/"))
    if path.split(os.sep)[0] == "generated":  # an op's certificates: its page shows them
        goal = f"ops/{os.path.basename(path) if path != 'generated' else 'index'}.md"
    return os.path.relpath(goal, os.path.dirname(uri) or ".").replace(os.sep, "/")


def _filled(item: Any) -> Any:
    """The navigation with the pages of a folder in the place of its name."""
    if isinstance(item, dict):
        return {title: _filled(inside) for title, inside in item.items()}
    if isinstance(item, list):
        return [_filled(inside) for inside in item]
    return [uri for uri in made_uris() if uri.startswith(item)] if item.endswith("/") else item

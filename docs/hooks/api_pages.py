"""The API reference: a page for each public module, an entry for each public name."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from docstrings import as_markdown

__all__ = ["MODULES", "api_pages", "public_names"]

#: public module -> what stands at its head
MODULES = {
    "momentgen": "Networks on uncertain inputs: `convert`, `noisy`, and what looks at them.",
    "momentgen.nn": "Layers over moments, under torch's names, and layers that torch lacks.",
    "momentgen.nn.functional": "Functions over moments. [Supported functions](../support.md) of torch are here too.",
    "momentgen.inference": "Random weights: posteriors, priors, likelihoods and scikit-learn estimators.",
    "momentgen.laws": "What is known of a random value, and how networks run on it. Most users need none of it.",
    "momentgen.runtime": "The classes of [ops](../ops.md) and certificates, and the cache.",
    "momentgen.rule": "The language of [rules](../ops.md#write-a-rule).",
    "momentgen.errors": "What momentgen raises on purpose.",
}


def public_names(module: str) -> list[str]:
    """The public names of ``module``: its ``__all__``, without modules, which have pages of their own."""
    names = importlib.import_module(module).__all__
    return [name for name in names if f"{module}.{name}" not in MODULES and not name.startswith("__")]


@functools.cache
def api_pages() -> dict[str, str]:
    """The pages of the reference: uri -> Markdown, in the order of the navigation."""
    shown: dict[int, str] = {}  # identity of what has an entry -> its name
    pages = {}
    for module, about in MODULES.items():
        entries, rows = [], []
        for name in public_names(module):
            path, value = f"{module}.{name}", getattr(importlib.import_module(module), name)
            if id(value) in shown:
                rows.append(f"| {_anchor(path, name)} | the same as [`{shown[id(value)]}`][{shown[id(value)]}] |")
            elif _has_source(value):
                shown[id(value)] = path
                entries.append(f"::: {path}")
            else:
                rows.append(f"| {_anchor(path, name)} | {_about(value)} |")
        table = ["| name | |", "| --- | --- |", *rows] if rows else []
        pages[f"api/{module}.md"] = "\n".join([f"# {module}", "", about, "", *_spaced(entries), *table, ""])
    return pages


def _spaced(entries: list[str]) -> list[str]:
    return [line for entry in entries for line in (entry, "")]


def _anchor(path: str, name: str) -> str:
    return f'<a id="{path}"></a>`{name}`'


def _has_source(value: Any) -> bool:
    """Whether ``value`` is a function or class written in momentgen, and not made by it from another."""
    if not (inspect.isfunction(value) or inspect.isclass(value)) or not value.__module__.startswith("momentgen"):
        return False
    try:
        inspect.getsource(value)
    except OSError:  # a layer made from torch's
        return False
    return True


def _about(value: Any) -> str:
    if not callable(value) or isinstance(value, tuple):
        return f"`{value}`"
    return as_markdown((inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " "))

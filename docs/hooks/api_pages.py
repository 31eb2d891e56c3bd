"""The API reference: a page for each public module or group of its names, and an entry for each public name."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterable
from typing import Any

from docstrings import as_markdown

__all__ = ["MODULES", "api_pages", "public_names", "uri_of"]

#: public module -> what stands at its head
MODULES = {
    "momentgen": "Networks on uncertain inputs: `convert`, `noisy`, and what looks at them.",
    "momentgen.nn": "Layers over moments, under torch's names, and layers that torch lacks.",
    "momentgen.nn.functional": "Functions over moments. [Supported functions](../support.md) of torch are here too.",
    "momentgen.inference": "Random weights: training, density filtering, Gibbs sampling and pruning.",
    "momentgen.laws": "What is known of a random value, and how networks run on it. Most users need none of it.",
    "momentgen.runtime": "The classes of [ops](../ops.md) and certificates, and the cache.",
    "momentgen.rule": "The language of [rules](../ops.md#write-a-rule).",
    "momentgen.errors": "What momentgen raises on purpose.",
}


#: module -> title of a page of its own, its head, and the modules whose names it has
GROUPS = {
    "momentgen.inference": {
        "estimators": ("scikit-learn estimators of [tables](../../tutorials/table.md).", ("checks", "estimators")),
        "posteriors": (
            "Posteriors and priors of random weights, and how a network gets them.",
            ("affine", "bayesian_network", "posterior", "prior", "trained", "tridiagonal"),
        ),
        "likelihoods": (
            "How data are distributed, given a random output.",
            ("gamma", "heteroscedastic", "likelihood"),
        ),
    }
}


def public_names(module: str) -> list[str]:
    """The public names of ``module``: its ``__all__``, without modules, which have pages of their own."""
    names = importlib.import_module(module).__all__
    return [name for name in names if f"{module}.{name}" not in MODULES and not name.startswith("__")]


def uri_of(module: str, name: str) -> str:
    """The page that has a public name of a module."""
    home = getattr(getattr(importlib.import_module(module), name), "__module__", "").removeprefix(f"{module}.")
    groups = GROUPS.get(module, {}).items()
    own = (f"/{title}" for title, (_, homes) in groups if home.partition(".")[0] in homes)
    return f"api/{module}{next(own, '')}.md"


@functools.cache
def api_pages() -> dict[str, str]:
    """The pages of the reference: uri -> Markdown, in the order of the navigation."""
    shown: dict[int, str] = {}  # identity of what has an entry -> its name
    pages = {"api/index.md": ""}
    listed = ["# API", "", "| page | has |", "| --- | --- |"]
    for module, about in MODULES.items():
        heads = {f"api/{module}.md": (module, about)}
        for title, (text, _) in GROUPS.get(module, {}).items():
            heads[f"api/{module}/{title}.md"] = f"{module}: {title}", text
        for uri, (title, text) in heads.items():
            names = [name for name in public_names(module) if uri_of(module, name) == uri]
            pages[uri] = "\n".join([f"# {title}", "", text, "", *_entries(module, names, shown)])
            listed.append(f"| [{title}]({uri.removeprefix('api/')}) | {text.replace('../../', '../')} |")
    pages["api/index.md"] = "\n".join([*listed, ""])
    return pages


def _entries(module: str, names: Iterable[str], shown: dict[int, str]) -> list[str]:
    """What a page has of names: an entry where there is source, else a row of the table at its end."""
    lines, rows = [], []
    for name in names:
        path, value = f"{module}.{name}", getattr(importlib.import_module(module), name)
        if id(value) in shown:
            rows.append(f"| {_anchor(path, name)} | the same as [`{shown[id(value)]}`][{shown[id(value)]}] |")
        elif _has_source(value):
            shown[id(value)] = path
            lines += [f"::: {path}", ""]
        else:
            rows.append(f"| {_anchor(path, name)} | {_about(value)} |")
    return [*lines, *(["| name | |", "| --- | --- |", *rows] if rows else []), ""]


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

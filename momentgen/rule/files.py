"""Finding rule files and their digests, with the standard library alone.

A build that has nothing to do must say so in a blink, so this module imports
neither sympy nor the rules themselves.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

from momentgen.errors import RuleError
from momentgen.rule.names import check_distinct, check_name

__all__ = ["RuleSource", "evidence_path", "known_rules", "load_rule_sources", "run_rule_file"]


#: modules whose functions a rule file could change for all that runs in its process
_SHARED = ("builtins", "math", "mpmath", "numpy", "sympy", "momentgen.rule.rule", "momentgen.rule.symbols")


class RuleSource(NamedTuple):
    """A rule file: the name it must define, where it lies, the SHA-256 of its bytes and of its evidence's (hex).

    ``evidence`` is empty without evidence.
    """

    name: str
    path: Path
    sha256: str
    evidence: str = ""

    @property
    def inputs(self) -> str:
        """Digest of all that the rule's author and its evidence put into a build."""
        return hashlib.sha256(f"{self.sha256} {self.evidence}".encode()).hexdigest() if self.evidence else self.sha256


def evidence_path(rule: Path) -> Path:
    """Where the evidence of a rule file lies, if there is any: what exhaustive runs found, beside the rules.

    >>> evidence_path(Path("rules/relu.py")).as_posix()
    'rules/evidence/relu.json'
    """
    return rule.parent / "evidence" / f"{rule.stem}.json"


def known_rules() -> list[Path]:
    """Where rules are looked for when nobody says: ``./rules``, and those installed with momentgen; what there is."""
    found = importlib.util.find_spec("momentgen.rules")
    installed = [] if found is None else [Path(place) for place in found.submodule_search_locations or ()]
    return [folder for folder in (Path("rules"), *installed) if folder.is_dir()]


def load_rule_sources(path: str | Path) -> tuple[RuleSource, ...]:
    """Rule files under ``path``: every ``NAME.py`` of a directory not starting with ``_``, sorted; or the one file.

    Raises:
        RuleError: if ``path`` does not exist, cannot be read, is a directory without rules or not a Python file.
            Also if a file's name cannot name a rule, or two names differ in case alone.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(p for p in path.glob("*.py") if not p.name.startswith("_"))
        if not files:
            raise RuleError(str(path), "expected a directory with rule files NAME.py, found none")
    elif path.suffix == ".py" and path.is_file():
        files = [path]
    elif path.exists():
        raise RuleError(str(path), "expected a directory of rules or one rule file NAME.py")
    else:
        raise RuleError(str(path), "expected a directory of rules or one rule file, but it does not exist")
    check_distinct((file.stem for file in files), str(path), "rules")
    sources = []
    for file in files:
        check_name(file.stem, str(file))
        evidence = evidence_path(file)
        sources.append(RuleSource(file.stem, file, _sha256(file), _sha256(evidence) if evidence.is_file() else ""))
    return tuple(sources)


def _sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise RuleError(str(file), f"cannot be read: {error.strerror or error}") from error


def run_rule_file(source: RuleSource) -> dict[str, Any]:
    """The module-level names that a rule file defines, by running it.

    Raises:
        RuleError: for a syntax error (with its line), and for any other error that running it raises.  Also where a
            name that was imported from :mod:`momentgen.rule`, or a function of sympy, is bound to something else.
    """
    namespace: dict[str, Any] = {"__name__": f"momentgen_rule_{source.name}", "__file__": str(source.path)}
    shared = {name: dict(vars(sys.modules[name])) for name in _SHARED if name in sys.modules}
    try:
        code = source.path.read_bytes()
        exec(compile(code, str(source.path), "exec"), namespace)
    except RuleError:
        raise
    except SyntaxError as error:
        text = error.text.strip() if error.text else None
        cause = f"syntax error, {source.path.name} line {error.lineno}: {error.msg}"
        raise RuleError(source.name, cause, text) from error
    except (Exception, SystemExit) as error:
        line = _line_of(error, str(source.path))
        cause = f"{source.path.name}{line} cannot be imported: {type(error).__name__}: {error}"
        raise RuleError(source.name, cause) from error
    finally:
        bound = _restored(shared)
    if bound:
        cause = f"{source.path.name} binds {', '.join(bound)} to something else, which other code uses too"
        raise RuleError(source.name, f"{cause}; give what you define a name of its own")
    _check_language(source, ast.parse(code), namespace)
    return namespace


def _restored(shared: dict[str, dict[str, Any]]) -> list[str]:
    """Bind the functions of shared modules as they were; the names of those that were not."""
    bound = []
    for module, before in shared.items():
        now = vars(sys.modules[module])
        for name, value in before.items():
            if callable(value) and now.get(name) is not value:
                now[name] = value
                bound.append(f"{module}.{name}")
    return bound


def _check_language(source: RuleSource, tree: ast.Module, namespace: dict[str, Any]) -> None:
    """Refuse a name of the rule language that was bound anew: after ``from sympy import *``, S(x) is x itself."""
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom) or node.module != "momentgen.rule":
            continue
        language = sys.modules[node.module]
        for alias in node.names:
            for name in language.__all__ if alias.name == "*" else [alias.name]:
                here = alias.asname or name
                if namespace.get(here) is not getattr(language, name, None):
                    cause = (
                        f"{source.path.name} line {node.lineno} imports {name} from momentgen.rule, and {here} is bound"
                    )
                    remedy = "import momentgen.rule after sympy, or import sympy's functions by name"
                    raise RuleError(source.name, f"{cause} to something else afterwards; {remedy}")


def _line_of(error: BaseException, filename: str) -> str:
    """Where in the rule file ``error`` came up, as `` line N``."""
    line, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = f" line {trace.tb_lineno}"
        trace = trace.tb_next
    return line

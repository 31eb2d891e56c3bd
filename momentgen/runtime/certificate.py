"""Certificates: what is known about the error of one variant of one rule.

The compiler writes them (``VARIANT.json`` beside the generated code); this
module only reads them.
"""

from __future__ import annotations

import importlib.resources
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from momentgen.errors import MomentgenError
from momentgen.promise import promise

__all__ = ["Certificate", "CertificateError"]

#: unit of a bound -> how it is printed
_UNITS = {"tolerance": "of the tolerance"}
_REQUIRED = ("rule", "variant", "bounds", "domain", "method")


class CertificateError(MomentgenError):
    """A certificate is missing, unreadable, or belongs to something else."""


@dataclass(frozen=True, repr=False)
class Certificate:
    """Bounds on the error of one generated function against the mathematical moment.

    Attributes:
        rule: name of the rule.
        variant: which variant of it.
        bounds: for each output (``mean``, ``var``) and partial derivative (``dmean_dmu``, ``dmean_dvar``,
            ``dvar_dmu``, ``dvar_dvar``), the bound and where it is met, as the compiler wrote them.
        domain: the inputs for which the bounds hold.
        method: how the bounds were established.
        facts: what else the compiler found (fitted constants, objectives reached, conventions).
        operations: counts of float32 operations, forward and backward.
        digest: digest of the rule that the code was generated from.
        goal: the unit of the bounds -> the largest error allowed in it.
        tolerance: the size of an error of 1, where the unit is ``tolerance``.  It has a formula each for ``mean``,
            ``var`` and ``partials``, the meaning of its symbols (``where``) and their values.
        words: all this in sentences.
    """

    rule: str
    variant: str
    bounds: Mapping[str, Any]
    domain: Any
    method: Any
    facts: Mapping[str, Any]
    operations: Mapping[str, Any]
    digest: str
    goal: Mapping[str, float]
    tolerance: Mapping[str, Any]
    words: tuple[str, ...]

    @classmethod
    def read(cls, package: str, rule: str, variant: str) -> Certificate:
        """Read ``VARIANT.json`` from the generated package ``package``.

        Raises:
            CertificateError: if the file is missing or is not a certificate of this rule and variant.
        """
        try:
            resource = importlib.resources.files(package).joinpath(f"{variant}.json")
        except ImportError as error:
            where = f"certificate of {rule}, variant {variant}"
            raise CertificateError(f"{where}: expected the package {package}, which does not import: {error}") from None
        where = f"certificate of {rule}, variant {variant} ({resource})"
        try:
            data = json.loads(resource.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CertificateError(f"{where}: the file is missing; build the rule again") from None
        except (OSError, ValueError) as error:
            raise CertificateError(f"{where}: expected a JSON file, but it does not read: {error}") from error
        if not isinstance(data, dict):
            raise CertificateError(f"{where}: expected a JSON object, got {type(data).__name__}")
        missing = [key for key in _REQUIRED if key not in data]
        if missing:
            raise CertificateError(f"{where}: missing {', '.join(missing)}; build the rule again")
        for key, expected in (("rule", rule), ("variant", variant)):
            if data[key] != expected:
                raise CertificateError(f"{where}: expected {key} {expected!r}, got {data[key]!r}")
        tables = {key: data.get(key, {}) for key in ("bounds", "facts", "operations", "goal", "tolerance")}
        for key, table in tables.items():
            if not isinstance(table, dict):
                raise CertificateError(f"{where}: expected {key} to be an object, got {type(table).__name__}")
        if bins := data.get("histogram_bins"):
            for bound in tables["bounds"].values():
                bound["histogram_ulp"] = dict(zip(bins, bound["histogram_ulp"], strict=True))
        return cls(
            rule=rule,
            variant=variant,
            domain=data["domain"],
            method=data["method"],
            digest=str(data.get("digest", "")),
            words=promise(data),
            **{key: MappingProxyType(table) for key, table in tables.items()},
        )

    def __repr__(self) -> str:
        lines = [f"Certificate of {self.rule}, variant {self.variant}"]
        lines += [textwrap.fill(said, 110, initial_indent="  ", subsequent_indent="  ") for said in self.words]
        unit = next(iter(self.goal), "ulp")
        for name, bound in self.bounds.items():
            size = bound.get(unit, "unknown")
            shown = f"{size:.2g}" if isinstance(size, float) else size
            place = ", ".join(f"{key} {value:.6g}" for key, value in bound.get("at", {}).items())
            lines.append(f"  {name:<11} {shown:>7} {_UNITS.get(unit, unit)}" + (f", at {place}" if place else ""))
        counts = [f"{sum(found.values())} {way}" for way, found in self.operations.items()]
        lines += [f"  operations  {', '.join(counts)}"] if counts else []
        lines.append("Attributes have the rest: bounds, domain, method, facts.")
        return "\n".join(lines)

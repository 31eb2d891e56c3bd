"""What all generated ops have: variants, certificates, and documentation that is made when it is read.

What an op is accurate to is in its certificates, and importing a package of ops is to read none of them.
"""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Sequence
from typing import Any

from momentgen.errors import InputError
from momentgen.runtime.certificate import Certificate, CertificateError

__all__ = ["Generated"]

_INDENT = "    "


class _Described:
    """The documentation of a class; of an instance what its ``_describe()`` returns."""

    def __init__(self, of_the_class: str | None) -> None:
        self.of_the_class = of_the_class

    def __get__(self, instance: Any, owner: type) -> str | None:
        if instance is None:
            return self.of_the_class
        described: str = instance._describe()
        return f"{instance._doc}\n\n{described}" if instance._doc else described


class Generated:
    """A callable of a generated package, which has its certificates.

    Args:
        name: the rule.
        package: name of the generated package.
        variants: names of the variants.
        default: the variant used when none is asked for.
        doc: one line for the documentation.
    """

    def __init_subclass__(cls) -> None:
        setattr(cls, "__doc__", _Described(cls.__doc__))  # noqa: B010 - to a type checker it is a string

    def __init__(self, name: str, package: str, variants: Sequence[str], default: str, doc: str) -> None:
        if default not in variants:
            raise InputError(f"{name}: the default variant {default!r} is not among {', '.join(variants)}")
        self.name, self.package, self.variants, self.default, self._doc = name, package, tuple(variants), default, doc
        self.__name__ = self.__qualname__ = name
        self.__module__ = package

    def certificate(self, variant: str | None = None) -> Certificate:
        """The certificate of a variant: bounds on its error, the domain they hold on, and how they were found.

        Raises:
            InputError: if there is no such variant.
            CertificateError: if its file is missing or damaged.
        """
        return Certificate.read(self.package, self.name, self._chosen(variant))

    def _chosen(self, variant: str | None) -> str:
        """The variant asked for, or the default.

        Raises:
            InputError: if there is no such variant.
        """
        chosen = self.default if variant is None else variant
        if not isinstance(chosen, str) or chosen not in self.variants:
            raise InputError(f"{self.name}: no variant {chosen!r}; expected one of {', '.join(self.variants)}")
        return chosen

    def _describe(self) -> str:
        raise NotImplementedError

    def _variants_in_words(self) -> str:
        return ", ".join(f"``{v}``" + (" (the default)" if v == self.default else "") for v in self.variants)

    def _accuracy_in_words(self, *more: str) -> str:
        """The certificates of all variants in words, then ``more``, as the lines of a documentation."""
        said = []
        for variant in self.variants:
            try:
                words = " ".join(self.certificate(variant).words)
            except CertificateError as error:
                words = f"unknown: {error}"
            said.append(f"``{variant}``: {words}")
        lines = [textwrap.fill(text, 116, initial_indent=_INDENT, subsequent_indent=2 * _INDENT) for text in said]
        lines += [textwrap.fill(text, 116, initial_indent=_INDENT, subsequent_indent=_INDENT) for text in more]
        return "".join(f"{line}\n" for line in lines)

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: copies and pickles of a network refer to the op, they do not carry it.
        return _find, (self.package, self.name)


def _find(package: str, name: str) -> Generated:
    found = getattr(importlib.import_module(package), name)
    if not isinstance(found, Generated):
        raise InputError(f"{package}.{name} is not an op, but {type(found).__name__}")
    return found

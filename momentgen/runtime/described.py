"""Documentation of ops that is made when it is read: what they are accurate to is in their certificates."""

from __future__ import annotations

import textwrap
from typing import Any, Protocol, TypeVar

from momentgen.runtime.certificate import Certificate, CertificateError

__all__ = ["accuracy", "described"]

_INDENT = "    "
_Class = TypeVar("_Class")


class _Certified(Protocol):
    variants: tuple[str, ...]

    def certificate(self, variant: str | None = None) -> Certificate: ...


class _Described:
    def __init__(self, of_the_class: str | None) -> None:
        self.of_the_class = of_the_class

    def __get__(self, instance: Any, owner: type) -> str | None:
        return self.of_the_class if instance is None else instance._describe()


def described(cls: type[_Class]) -> type[_Class]:
    """Let the documentation of each instance of a class be what its ``_describe()`` returns, made when it is read.

    What an op is accurate to is in its certificates, and importing a package of ops is to read none of them.
    """
    setattr(cls, "__doc__", _Described(cls.__doc__))  # noqa: B010 - to a type checker it is a string
    return cls


def accuracy(op: _Certified, *more: str) -> str:
    """The certificates of an op's variants in words, then ``more``, as the lines of a documentation."""
    said = []
    for variant in op.variants:
        try:
            words = " ".join(op.certificate(variant).words)
        except CertificateError as error:
            words = f"unknown: {error}"
        said.append(f"``{variant}``: {words}")
    lines = [textwrap.fill(text, 116, initial_indent=_INDENT, subsequent_indent=2 * _INDENT) for text in said]
    lines += [textwrap.fill(text, 116, initial_indent=_INDENT, subsequent_indent=_INDENT) for text in more]
    return "".join(f"{line}\n" for line in lines)

"""Laws in torch's pytrees, by which vmap, export and their like see the tensors of a law."""

from __future__ import annotations

from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor

from momentgen.errors import UnsupportedError
from momentgen.laws.law import Law, new_law
from momentgen.laws.unsupported import DEFAULT_INSTEAD, place

__all__ = ["register_pytree"]


def _flatten(law: Law) -> tuple[list[Tensor], tuple[type[Law], Any]]:
    return list(law._parts()), (type(law), law._noise)


def _flatten_with_keys(law: Law) -> tuple[list[tuple[Any, Tensor]], tuple[type[Law], Any]]:
    parts, context = _flatten(law)
    keys = ("mean", "var")[: len(parts)]
    return [(pytree.GetAttrKey(f"_{key}"), part) for key, part in zip(keys, parts, strict=True)], context


def _of_parts(parts: Any, context: tuple[type[Law], Any]) -> Law:
    """A law of its parts; ``torch.vmap`` puts axes in the place of tensors."""
    if any(isinstance(part, int) for part in parts):
        raise UnsupportedError(
            f"vmap of a random value{place()}: the deterministic methods have no rule for it; {DEFAULT_INSTEAD}"
        )
    law: Law = new_law(context[0], *parts)
    law._noise = context[1]
    return law


def register_pytree(cls: type[Law]) -> type[Law]:
    """Let vmap, export and their like see the tensors of a law; a decorator of its class."""
    pytree.register_pytree_node(
        cls,
        _flatten,
        _of_parts,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=_flatten_with_keys,
    )
    return cls

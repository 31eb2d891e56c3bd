"""What C in float64 does otherwise than a form says, to the same accuracy and faster.

One over a root is one operation, where nothing else hides a root's time; in the turns of a long loop, products that are
added or subtracted and not otherwise read are rounded together with the sum.
"""

from __future__ import annotations

from dataclasses import replace

from momentgen.compiler.emit._form import Form, Item, Loop

__all__ = ["has_long_loops", "with_fused_products", "with_roots"]

#: turns of a loop, beyond which the processor takes roots while it computes other things, for nothing
_MANY = 16


def has_long_loops(form: Form) -> bool:
    """Whether a loop has so many turns that they are most of the time."""
    return any(part.turns > _MANY for part in form.parts if isinstance(part, Loop))


def with_roots(form: Form) -> Form:
    """The form with one operation, ``rsqrt``, for one over a root."""

    def rooted(item: Item) -> Item:
        root = form.items[item.args[0]] if item.kind == "recip" else item
        return Item("rsqrt", root.args) if item.kind == "recip" and root.kind == "sqrt" else item

    found = replace(form, items={index: rooted(item) for index, item in form.items.items()})
    uses = found.uses()
    return found.without({index for index, item in found.items.items() if item.kind == "sqrt" and not uses[index]})


def with_fused_products(form: Form) -> Form:
    """The form with multiply-adds in long loops: ``madd``, a b + c; ``msub``, a b - c; ``nmadd``, c - a b.

    Only in their turns, which are sums of terms of one sign or of comparable size.  Elsewhere a difference of two
    products may be meant to be 0 where these are equal.
    """
    uses, items, fused = form.uses(), dict(form.items), set[int]()
    for part in form.parts:
        if not isinstance(part, Loop) or part.turns <= _MANY:
            continue
        within = set(part.items)

        def is_product(index: int, within: set[int] = within) -> bool:
            return index in within and items[index].kind == "mul" and uses[index] == 1

        for index in part.items:
            item = items[index]
            if item.kind not in ("add", "sub"):
                continue
            left, right = item.args
            if is_product(right):
                kind = "madd" if item.kind == "add" else "nmadd"
                items[index] = Item(kind, (*items[right].args, left))
                fused.add(right)
            elif is_product(left):
                kind = "madd" if item.kind == "add" else "msub"
                items[index] = Item(kind, (*items[left].args, right))
                fused.add(left)
    return replace(form, items=items).without(fused)

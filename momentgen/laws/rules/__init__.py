"""Rules: what laws do with a function of torch, one module for each kind of function.

A rule is registered by :func:`momentgen.laws.law.rule`, a decorator, beside the rules of other laws for that function.
Importing this package registers all.
"""

from __future__ import annotations

from momentgen.laws.rules import attention, elementwise, linear, movement, noise, products, reductions

__all__ = ["attention", "elementwise", "linear", "movement", "noise", "products", "reductions"]

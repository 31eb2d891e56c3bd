"""Renderers: from a float32 program, or a real graph in float64, to source text."""

from __future__ import annotations

from momentgen.compiler.emit._text import Header
from momentgen.compiler.emit.c import render_c
from momentgen.compiler.emit.c_float64 import render_c_float64
from momentgen.compiler.emit.triton import render_triton, render_triton_sums

__all__ = ["Header", "render_c", "render_c_float64", "render_triton", "render_triton_sums"]

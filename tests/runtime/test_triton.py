"""The Triton kernels through the runtime's launcher, in Triton's interpreter, which wants a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import momentgen

pytest.importorskip("triton")
CHECK = """
import torch
from momentgen.generated import leaky_relu, product, square

for shape in ((), (0,), (1,), (7, 3), (1500,)):
    m, v, g, h = torch.randn(shape), torch.rand(shape), torch.rand(shape), torch.rand(shape)
    for op, params in ((square, {}), (leaky_relu, {"negative_slope": 0.25})):
        for which, tensors in (("forward", (m, v)), ("backward", (m, v, g, h))):
            got = op.kernel(which, backend="triton")(*tensors, **params)
            torch.testing.assert_close(got, op.kernel(which, backend="c")(*tensors, **params), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(product.kernel(backend="triton")(m, v, g, h), tuple(product(m, v, g, h)))
m, v = torch.randn(5, 4).half().T, torch.rand(4, 5).half()
for got, want in zip(square.kernel(backend="triton")(m, v), square(m, v)):
    assert got.dtype is torch.float16 and got.stride() == want.stride()
    torch.testing.assert_close(got, want)
print("all agree")
"""


def run(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), str(Path(momentgen.__file__).parents[1])])
    environment = dict(os.environ, PYTHONPATH=paths, **changes)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)


def test_launcher_and_kernels_agree_with_c() -> None:
    done = run(CHECK, TRITON_INTERPRET="1")
    assert done.stdout.strip() == "all agree", done.stderr


def test_missing_triton_is_told_apart_from_a_damaged_package() -> None:
    code = """
import sys
from momentgen.errors import MomentgenError
from momentgen.runtime.gpu import TritonKernels
from momentgen.runtime.toolchain import Unavailable
try:
    TritonKernels("momentgen.generated.square", "square", "nothing")
except MomentgenError as error:
    print(error)
sys.modules["triton"] = None
try:
    TritonKernels("momentgen.generated.square", "square", "exact")
except Unavailable as error:
    print(error)
"""
    lines = run(code).stdout.splitlines()
    assert "square: the Triton code of variant nothing does not load" in lines[0]
    assert "Triton does not import" in lines[1]

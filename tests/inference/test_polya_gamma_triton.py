"""The Triton kernel: in the interpreter, compiled ahead of time, and on a GPU where there is one."""

from __future__ import annotations

import itertools
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from inference.polya_gamma_truth import disagreements
from machine_code import TARGETS
from other_processes import environment

from momentgen.inference.polya_gamma_sampler import polya_gamma
from momentgen.inference.polya_gamma_sampler.portable import portable_draws

pytest.importorskip("triton")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

INTERPRETED = """
import torch
from momentgen.inference.polya_gamma_sampler import triton_kernel
from momentgen.inference.polya_gamma_sampler.portable import portable_draws

key = torch.tensor(-0x0123456789ABCDEF)
generator = torch.Generator().manual_seed(0)
z = torch.randn(600, generator=generator, dtype=torch.float64) * 3
z[::5] *= 10.0 ** torch.linspace(-8, 4, 120, dtype=torch.float64)
z[:8] = torch.tensor([0.0, -0.0, 1.8, -1.8, 1e-300, 41.0, 1e4, 1e30])
b = torch.randint(0, 4, z.shape, generator=generator)
for block in (64, 4096):
    triton_kernel.BLOCK = block
    for dtype in (torch.float64, torch.float32):
        few = slice(None) if block > 64 else slice(130)
        x, counts = z[few].to(dtype), b[few].contiguous()
        for given in ((None, 1), (None, 3), (counts, 0)):
            got, want = triton_kernel.triton_draws(x, *given, key), portable_draws(x, *given, key)
            torch.testing.assert_close(got, want, rtol=4 * torch.finfo(dtype).eps, atol=0)
torch.save(triton_kernel.triton_draws(torch.ones(12_000, dtype=torch.float64), None, 1, key), "OUT")
print("all agree")
"""


def test_interpreted_draws_are_those_of_pytorch_and_follow_the_density(tmp_path: Path) -> None:
    pytest.importorskip("triton", minversion="3.9", reason="the interpreter of triton 3.8 rounds fma twice")
    out = tmp_path / "draws.pt"
    code = INTERPRETED.replace("OUT", str(out))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(TRITON_INTERPRET="1"), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "all agree", done.stderr
    assert disagreements(torch.load(out), 1, 1.0) == []


#: target, dtype and whether each element has a count of its own; `make slow` has all combinations
KERNELS = list(itertools.product(("sm_80", "sm_90", "gfx942"), ("fp64", "fp32"), (True, False)))
QUICK = (("sm_90", "fp64", True), ("gfx942", "fp32", False))


@pytest.mark.parametrize(
    ("target", "dtype", "counts"),
    [pytest.param(*kernel, marks=() if kernel in QUICK else pytest.mark.slow) for kernel in KERNELS],
)
def test_the_kernel_compiles_in_float64_without_local_memory(target: str, dtype: str, counts: bool) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from momentgen.inference.polya_gamma_sampler.triton_kernel import BLOCK, WARPS, constants, polya_gamma_kernel

    if not isinstance(polya_gamma_kernel, triton.JITFunction):
        pytest.skip("Triton interprets")
    # A launch with b = 1 for all makes `draws` a constant.
    fixed = {**constants(), "HAS_COUNTS": counts, "BLOCK": BLOCK} | ({} if counts else {"draws": 1})
    types = {"z_ptr": f"*{dtype}", "counts_ptr": "*i64", "key_ptr": "*i64", "out_ptr": f"*{dtype}"}
    signature = {**types, "n": "i64", "draws": "i32", **dict.fromkeys(fixed, "constexpr")}
    options = {"num_warps": WARPS, "enable_fp_fusion": False}
    source = ASTSource(polya_gamma_kernel, signature, constexprs=fixed)
    compiled = triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)
    if target.startswith("sm"):
        text = compiled.asm["ptx"]
        assert not re.search(r"\b(?:ld|st)\.local\b|\bcall\b|\bbar\.sync\b", text)
        # Arithmetic is in float64, and so are the constants, to the last bit.
        assert not re.search(r"^\s*(?:@\S+\s+)?(?:add|sub|mul|fma|div|sqrt|ex2|lg2|rcp)\.\S*f32\b", text, re.MULTILINE)
        for name, value in constants().items():
            assert f"0d{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}" in text, name
    else:
        assert "v_fma_f64" in compiled.asm["amdgcn"]


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_on_a_gpu_are_those_of_pytorch(dtype: torch.dtype) -> None:
    z = torch.linspace(-60, 60, 100_001, dtype=dtype)
    b = torch.arange(z.numel()) % 4
    for count in (1, 3, b):
        on_cpu = polya_gamma(count, z, generator=torch.Generator().manual_seed(0))
        there = count.cuda() if isinstance(count, torch.Tensor) else count
        on_gpu = polya_gamma(there, z.cuda(), generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=8 * torch.finfo(dtype).eps, atol=0)
    key = torch.tensor(17, device="cuda")
    torch.testing.assert_close(portable_draws(z.cuda(), None, 1, key).cpu(), portable_draws(z, None, 1, key.cpu()))


@needs_gpu
@pytest.mark.parametrize("z", [0.0, 1.0, 5.0, 50.0, 1e3])
def test_draws_on_a_gpu_follow_the_series_density(z: float) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    draws = polya_gamma(1, torch.full((4_000_000,), z, dtype=torch.float64, device="cuda"), generator=generator)
    assert disagreements(draws, 1, z) == []

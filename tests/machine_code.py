"""Ahead-of-time compilation of the Triton kernels, and what their machine code must not hold.

No GPU is needed.  Correct rounding in the source is worth nothing if the
backend contracts, approximates or flushes: :func:`inspect` reads the assembly
and says so, with the registers, spills and instructions an element costs.
"""

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from momentgen.compiler.ir.op import Op
from momentgen.compiler.ir.program import Program

__all__ = ["TARGETS", "Assembly", "Findings", "compile_triton", "inspect", "lint_amdgcn", "lint_ptx"]

#: name -> (backend, architecture, threads a warp)
TARGETS: Mapping[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}

#: PTX instructions that do arithmetic, rather than move, load, store or branch.
_PTX_ARITHMETIC = re.compile(
    r"(?:add|sub|mul|mad|fma|div|rcp|sqrt|rsqrt|ex2|lg2|sin|cos|tanh|neg|abs|min|max|copysign|testp|setp?|selp|slct"
    r"|and|x?or|not|lop3|shl|shr|shf|bfe|bfi|prmt|cvt|cnot|popc|clz)\b"
)
_PTX_LINE = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:\.[a-z0-9_:]+)*)\s", re.MULTILINE)
_PTX_FORBIDDEN = (
    (re.compile(r"\.approx\b"), "approximate"),
    (re.compile(r"\.ftz\b"), "flushes subnormals"),
    (re.compile(r"^div\.full\b"), "approximate division"),
    (re.compile(r"^(?:ld|st)\.local\b"), "local memory"),
    # Without a rounding mode, ptxas may contract.
    (re.compile(r"^(?:add|sub|mul)\.f(?:32|64|16)\b"), "no rounding mode, may be contracted"),
    (re.compile(r"^(?:fma|mad|div|sqrt|rcp|add|sub|mul)\.(?:rz|rm|rp)\.f32\b"), "not rounded to nearest"),
    (re.compile(r"^mad\.(?:rn\.)?f32\b"), "multiply-add"),
    (re.compile(r"^(?:ex2|lg2|sin|cos|tanh|rsqrt)\b"), "transcendental function of the hardware"),
    (re.compile(r"\.f64\b"), "float64"),
    (re.compile(r"^call\b"), "call"),
)
_AMD_FORBIDDEN = (
    (re.compile(r"^(?:scratch_|buffer_store\S* .*offen.*scratch)"), "scratch memory"),
    (re.compile(r"^v_(?:exp|log|sin|cos)_f32"), "approximate"),
    (re.compile(r"^v_(?:mad|mac|madak|madmk|mad_mix|mad_legacy|mac_legacy|mul_legacy)_f32"), "flushes or contracts"),
    (re.compile(r"^v_\w*f64"), "float64"),
    (re.compile(r"^s_swappc"), "call"),
)


@dataclass(frozen=True)
class Assembly:
    """One kernel compiled for one target.

    Attributes:
        kernel: name of the kernel.
        target: ``sm_80``, ``sm_90``, ``sm_100`` or ``gfx942``.
        text: PTX, or AMD GCN assembly.
        llvm: the LLVM IR it was made from.
        sass: disassembled machine code of an NVIDIA target, where the tool for it is at hand.
        registers: 32-bit registers a thread, if known.
        spilled: spilled registers or bytes of local memory a thread, if known.
        elements: elements a thread works on.
    """

    kernel: str
    target: str
    text: str
    llvm: str
    sass: str | None
    registers: int | None
    spilled: int | None
    elements: int


@dataclass(frozen=True)
class Findings:
    """What :func:`inspect` read from an assembly.

    Attributes:
        problems: one line for each thing that breaks the promise of equal bits or of speed; empty if all is well.
        instructions: mnemonic -> how often it stands in the text.
        fma: fused multiply-adds in the text (NVIDIA: those of the program alone; AMD: with those of its divisions).
        per_element: arithmetic instructions an element (PTX or GCN).
        sass_per_element: machine instructions an element, the divisions' slow paths included, if known.
        registers: 32-bit registers a thread, if known.
        spilled: spilled registers or bytes a thread, if known.
    """

    problems: tuple[str, ...]
    instructions: Mapping[str, int]
    fma: int
    per_element: float
    sass_per_element: float | None
    registers: int | None
    spilled: int | None


@contextmanager
def _module(source: str, name: str) -> Iterator[Any]:
    """Import ``source`` from a file that lives as long as the context: triton reads the source back."""
    with tempfile.TemporaryDirectory(prefix="momentgen-triton-") as directory:
        path = Path(directory) / f"{name}_module.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            del sys.modules[path.stem]


def compile_triton(source: str, kernel_name: str, target: str, *, num_warps: int = 8, dtype: str = "fp32") -> Assembly:
    """Compile one kernel of a generated Triton module for ``target``, without a GPU.

    Args:
        source: what :func:`momentgen.compiler.emit.render_triton` wrote.
        kernel_name: name of the kernel in it.
        target: a key of :data:`TARGETS`.
        num_warps: warps a program of the grid, of 32 lanes with the module's ``LANE_ELEMENTS`` each.
        dtype: element type of all tensors, in Triton's spelling (``fp32``, ``bf16``, ``fp16``).
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    backend, architecture, warp_size = TARGETS[target]
    with _module(source, kernel_name) as module:
        kernel = getattr(module, kernel_name)
        assert isinstance(kernel, triton.JITFunction), "not under TRITON_INTERPRET"
        block = 32 * num_warps * int(module.LANE_ELEMENTS)
        signature = {name: _argument_type(name, dtype) for name in kernel.arg_names}
        # What a launch with aligned tensors would know.
        aligned = [i for i, name in enumerate(kernel.arg_names) if name == "n" or name.endswith("_ptr")]
        attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
        ast = ASTSource(kernel, signature, constexprs={"BLOCK": block}, attrs=attributes)
        options = {"num_warps": num_warps, "enable_fp_fusion": False}
        compiled = triton.compile(ast, target=GPUTarget(backend, architecture, warp_size), options=options)
    elements = max(block // (warp_size * num_warps), 1)
    asm = compiled.asm
    if backend == "hip":
        text = str(asm["amdgcn"])
        registers, spilled = _amd_resources(text)
        return Assembly(kernel_name, target, text, str(asm["llir"]), None, registers, spilled, elements)
    sass, registers, spilled = _disassemble(asm["cubin"])
    return Assembly(kernel_name, target, str(asm["ptx"]), str(asm["llir"]), sass, registers, spilled, elements)


def _argument_type(name: str, dtype: str) -> str:
    if name == "BLOCK":
        return "constexpr"
    return f"*{dtype}" if name.endswith("_ptr") else "i64" if name == "n" else "fp32"


def _disassemble(cubin: bytes) -> tuple[str | None, int | None, int | None]:
    """SASS, registers and bytes of local memory of the only function, by the cuobjdump in Triton's wheel."""
    import triton.backends.nvidia

    tool = next((p / "bin" / "cuobjdump" for p in map(Path, triton.backends.nvidia.__path__)), None)
    if tool is None or not tool.exists():
        return None, None, None
    with tempfile.TemporaryDirectory(prefix="momentgen-cubin-") as directory:
        path = Path(directory) / "kernel.cubin"
        path.write_bytes(cubin)
        outputs = []
        for option in ("-sass", "-res-usage"):
            done = subprocess.run([str(tool), option, str(path)], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                # An older cuobjdump may not know a newer architecture: unknown, which inspect says.
                return None, None, None
            outputs.append(done.stdout + done.stderr)
    sass, usage = outputs
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", usage)
    if found is None:
        return sass, None, None
    registers, stack, local = map(int, found.groups())
    return sass, registers, stack + local


def _amd_resources(text: str) -> tuple[int | None, int | None]:
    def field(name: str) -> int | None:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        return None if found is None else int(found.group(1))

    spills = [field(name) for name in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")]
    known = [count for count in spills if count is not None]
    return field("vgpr_count"), sum(known) if len(known) == len(spills) else None


def _ptx_instructions(text: str) -> Counter[str]:
    # Lines that begin with a dot are directives, those that end with a colon labels: neither matches.
    return Counter(_PTX_LINE.findall(re.sub(r"//.*", "", text)))


def _amd_instructions(text: str) -> Counter[str]:
    code = text.split(".Lfunc_end", 1)[0]
    return Counter(re.findall(r"^\s+([a-z][a-z0-9]*_[a-z0-9_]+)(?:\s|$)", re.sub(r";.*", "", code), re.MULTILINE))


def _lint(counts: Mapping[str, int], forbidden: tuple[tuple[re.Pattern[str], str], ...]) -> list[str]:
    return [
        f"{mnemonic} ({count}x): {reason}"
        for mnemonic, count in sorted(counts.items())
        for pattern, reason in forbidden
        if pattern.search(mnemonic)
    ]


def lint_ptx(text: str) -> list[str]:
    r"""What in PTX ``text`` breaks the promise of correctly rounded float32, one line a kind of instruction.

    >>> lint_ptx("\tmul.rn.f32 %f1, %f2, %f3;\n\tdiv.full.f32 %f1, %f2, %f3;\n")
    ['div.full.f32 (1x): approximate division']
    """
    problems = _lint(_ptx_instructions(text), _PTX_FORBIDDEN)
    if re.search(r"^\s*\.local\b", text, re.MULTILINE):
        problems.append(".local: local memory")
    return problems


def lint_amdgcn(text: str) -> list[str]:
    r"""What in GCN ``text`` breaks the promise of correctly rounded float32.

    Division and square root are sequences there: a bare ``v_rcp_f32`` or ``v_sqrt_f32`` is told from one by the
    instructions that correct it.

    >>> lint_amdgcn("\tv_rcp_f32_e32 v1, v2\n.amdhsa_float_denorm_mode_32 3\n")
    ['v_rcp_f32: 1, expected one a division, got 0 v_div_fixup_f32']
    """
    counts = _amd_instructions(text)
    problems = _lint(counts, _AMD_FORBIDDEN)
    total = Counter[str]()
    for mnemonic, count in counts.items():
        total[re.sub(r"_(?:e32|e64|sdwa|dpp)$", "", mnemonic)] += count
    if total["v_rcp_f32"] > total["v_div_fixup_f32"]:
        got = f"{total['v_rcp_f32']}, expected one a division, got {total['v_div_fixup_f32']} v_div_fixup_f32"
        problems.append(f"v_rcp_f32: {got}")
    # LLVM's square root starts from v_sqrt or v_rsq and corrects it by residuals.
    roots = total["v_sqrt_f32"] + total["v_rsq_f32"]
    residuals = total["v_fma_f32"] + total["v_fmac_f32"] + 2 * total["v_pk_fma_f32"]
    if residuals < 2 * roots:
        problems.append(f"v_sqrt_f32, v_rsq_f32: {roots}, expected two residuals a root, got {residuals}")
    mode = re.search(r"\.amdhsa_float_denorm_mode_32\s+(\d)", text)
    if mode is None or mode.group(1) != "3":
        problems.append(f"denormal mode: expected 3, got {mode and mode.group(1)}")
    return problems


def _lint_llvm(text: str) -> list[str]:
    # LLVM itself writes nnan, ninf and nsz where it has proved them; the flags below change results.
    flags = re.findall(r"\b(?:fadd|fsub|fmul|fdiv|call)\s+(?:\w+\s+)*?(fast|reassoc|contract|afn|arcp)\b", text)
    flags += re.findall(r"!fpmath|llvm\.amdgcn\.(?:exp|log|sin|cos)\w*|llvm\.nvvm\.\S*(?:approx|ftz)", text)
    return [f"LLVM {flag} ({count}x)" for flag, count in sorted(Counter(flags).items())]


def inspect(assembly: Assembly, program: Program | None = None) -> Findings:
    """Read an assembly.

    Args:
        assembly: of one kernel.
        program: the program it was made from; with it, contraction is checked by counting fused multiply-adds.

    Returns:
        Findings; ``problems`` is empty if the code keeps its promises.
    """
    amd = assembly.target.startswith("gfx")
    counts = _amd_instructions(assembly.text) if amd else _ptx_instructions(assembly.text)
    problems = lint_amdgcn(assembly.text) if amd else lint_ptx(assembly.text)
    problems += _lint_llvm(assembly.llvm)
    if assembly.spilled:
        problems.append(f"spills: {assembly.spilled}")
    fma = 0
    for name, count in counts.items():
        if re.match(r"fma\.rn\.f32|v_(?:pk_)?fma(?:c|ak|mk)?_f32", name):
            fma += 2 * count if "f32x2" in name or "_pk_" in name else count
    arithmetic = sum(n for name, n in counts.items() if _is_arithmetic(name))
    if program is not None and not amd:
        most = program.count().get(Op.FMA.value, 0) * assembly.elements
        if fma > most:
            problems.append(f"fma: expected at most {most} for {assembly.elements} elements, got {fma}: contracted")
    sass = None
    if assembly.sass is not None:
        # One line of a SASS listing in two holds an instruction; NOP only pads.
        lines = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9]*)", assembly.sass, re.MULTILINE)
        sass = sum(name != "NOP" for name in lines) / assembly.elements
    return Findings(
        tuple(problems),
        dict(sorted(counts.items())),
        fma,
        arithmetic / assembly.elements,
        sass,
        assembly.registers,
        assembly.spilled,
    )


def _is_arithmetic(mnemonic: str) -> bool:
    if mnemonic.startswith(("v_", "s_")):
        return mnemonic.startswith("v_") and not mnemonic.startswith(("v_mov", "v_accvgpr"))
    return _PTX_ARITHMETIC.match(mnemonic) is not None

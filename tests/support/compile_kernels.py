"""Compile all kernels of the Triton engine for GPUs and write JSON: their assemblies and resources.

Resources are registers of a thread, bytes that it spills, and bytes of shared memory.
"""

import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rsl_tbptt.algorithms import fused_kernels
from rsl_tbptt.core.scan import CELLS, kernels
from rsl_tbptt.core.scan.cells import OF_TORCH
from rsl_tbptt.core.scan.triton import tiles_of

TARGETS = (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64))
ALL = {**CELLS, **OF_TORCH}.values()
OF_UNITS, WITH_PRODUCT = (
    [
        (cell, kernel)
        for cell in ALL
        for name, kernel in kernels.kernels_of(cell).items()
        if name in names
    ]
    for names in (kernels.OF_UNITS, kernels.WITH_PRODUCT)
)
DTYPES = (("fp32", "fp32"), ("bf16", "fp32"), ("fp64", "fp64"))
"""Dtypes of the operands of products and of the rest."""

PRODUCTS = (("fp32", "tf32"), ("fp32", "ieee"), ("bf16", "ieee"))
"""Dtype and precision of products in kernels."""

SIZES = (256, 128, 64)
"""Hidden units; the larger ones with larger tiles."""

OPERANDS = ("gates", "weights", "operands", "grad_hidden")
NUMBERS = dict.fromkeys(("low", "high", "clip", "max_norm", "desired_kl"), "fp32")
NUMBERS |= dict.fromkeys(("R", "split", "P", "num_samples", "rows"), "i32")
FUSED = ("gaussian_forward", "gaussian_backward", "value_error", "clip_factors", "follow_kl")
CONSTANTS = {"H": 100, "BLOCK": 512, "A": 12, "D": 100, "WIDTH": 104}
PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
ALIGNED = [["tt.divisibility", 16]]
"""What Triton finds out about the addresses of torch's tensors."""


def compile_kernel(target, kernel, operand_dtype, dtype, constants=CONSTANTS):
    """Return a compiled kernel, with nothing known about the number of environments."""
    options = {name: constants[name] for name in ("num_warps",) if name in constants}
    constants = {name: constants[name] for name in kernel.arg_names if name in constants}
    types = dict.fromkeys(kernel.arg_names, f"*{dtype}") | dict.fromkeys(constants, "constexpr")
    types |= {"step": "i32", "T": "i32", "N": "i32", "has_next": "i32"}
    for argument in types:
        if argument in OPERANDS:
            types[argument] = f"*{operand_dtype}"
        elif argument == "starts":
            types[argument] = "*i1"
        elif argument == "rate":
            types[argument] = "*fp64"
        elif argument in NUMBERS or argument.endswith("_row"):
            types[argument] = NUMBERS.get(argument, "i32")
    types = {argument: types[argument] for argument in kernel.arg_names}
    hints = {(i,): ALIGNED for i, each in enumerate(types.values()) if each.startswith("*")}
    source = ASTSource(kernel, types, constants, hints)
    return triton.compile(source, target=target, options=options)


def assembly_of(target, compiled):
    """Return the text that an assembler takes, or disassembled code for AMD."""
    return compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"]


def resources_of(target, compiled):
    """Return the registers and spilled bytes of a thread, and the bytes of shared memory."""
    told, shared = assembly_of(target, compiled), compiled.metadata.shared
    registers, spills, size = r"vgpr_count:\s+(\d+)", r"vgpr_spill_count:\s+(\d+)", 4
    if target.backend == "cuda":
        registers, spills, size = r"Used (\d+) registers", r"(\d+) bytes spill", 1
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "kernel.ptx")
            file.write_text(told)
            arch = f"sm_{target.arch}{'a' * (target.arch == 90)}"
            command = [PTXAS, "-v", "--gpu-name", arch, file, "-o", file.with_suffix(".cubin")]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    [used] = map(int, re.findall(rf"\b{registers}", told))
    return [used, size * sum(map(int, re.findall(spills, told))), shared]


if __name__ == "__main__":
    assemblies = {
        f"{target.arch} {kernel.__name__} {' '.join(dtypes)}": assembly_of(
            target, compile_kernel(target, kernel, *dtypes)
        )
        for target, (_, kernel), dtypes in itertools.product(TARGETS, OF_UNITS, DTYPES)
    }
    resources = {}
    for target, (cell, kernel), H in itertools.product(TARGETS, WITH_PRODUCT, SIZES):
        tile = tiles_of(cell)[min(SIZES.index(H), len(tiles_of(cell)) - 1)]
        for dtype, precision in PRODUCTS:
            if target.backend == "cuda" or precision == "ieee":
                of_tile = tile.constants({"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
                constants = {"H": H, **of_tile, "PRECISION": precision}
                compiled = compile_kernel(target, kernel, dtype, "fp32", constants)
                name = f"{target.arch} {kernel.__name__} {dtype} {precision} {H} {tuple(tile)}"
                resources[name] = resources_of(target, compiled)
    others = [getattr(fused_kernels, name) for name in FUSED]
    others += [kernels.kernels_of(cell)["inputs"] for cell in ALL]
    for target, kernel in itertools.product(TARGETS, others):
        compiled = compile_kernel(target, kernel, "fp32", "fp32")
        resources[f"{target.arch} {kernel.__name__}"] = resources_of(target, compiled)
    json.dump({"assemblies": assemblies, "resources": resources}, sys.stdout)

"""Compile all kernels of the Triton engine for GPUs and write their assemblies as JSON."""

import itertools
import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rsl_tbptt.core.scan import CELLS
from rsl_tbptt.core.scan.cells import OF_TORCH
from rsl_tbptt.core.scan.kernels import kernels_of

TARGETS = (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64))
KERNELS = [each for cell in {**CELLS, **OF_TORCH}.values() for each in kernels_of(cell).values()]
DTYPES = (("fp32", "fp32"), ("bf16", "fp32"), ("fp64", "fp64"))
"""Dtypes of the operands of products and of the rest."""

OPERANDS = ("gates", "operands", "grad_hidden")
CONSTANTS = {"H": 100, "BLOCK": 512}
ALIGNED = [["tt.divisibility", 16]]
"""What Triton finds out about the addresses of torch's tensors."""


def compile_kernel(target, kernel, operand_dtype, dtype):
    """Return a kernel's assembly, with nothing known about the number of environments."""
    types = dict.fromkeys(kernel.arg_names, f"*{dtype}") | dict.fromkeys(CONSTANTS, "constexpr")
    types |= {"step": "i32", "T": "i32", "N": "i32"}
    for argument in types:
        if argument in OPERANDS:
            types[argument] = f"*{operand_dtype}"
        elif argument == "starts":
            types[argument] = "*i1"
    types = {argument: types[argument] for argument in kernel.arg_names}
    hints = {(i,): ALIGNED for i, each in enumerate(types.values()) if each.startswith("*")}
    source = ASTSource(kernel, types, CONSTANTS, hints)
    compiled = triton.compile(source, target=target)
    return compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"]


if __name__ == "__main__":
    assemblies = {
        f"{target.arch} {kernel.__name__} {' '.join(dtypes)}": compile_kernel(
            target, kernel, *dtypes
        )
        for target, kernel, dtypes in itertools.product(TARGETS, KERNELS, DTYPES)
    }
    json.dump(assemblies, sys.stdout)

"""Tolerances of the tests, with the reason for each."""

from typing import Any

EXACT_FLOAT64: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
"""Same mathematics in float64, summed in another order."""

SAME_FLOAT32: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-7}
"""Same mathematics in float32, summed in another order, over one update."""

WINDOW_FLOAT32: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
"""Float32 compared with the same mathematics in float64, over a window with results of size 1."""

TORCH_ON_A_GPU_FLOAT32: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
"""The same for torch's own cells on a GPU, which are less exact: 5e-5 were seen on an H200."""

PARITY_FLOAT32: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}
"""Parameters after several updates in float32: Adam divides small gradients by their own size."""

BFLOAT16: dict[str, Any] = {"rtol": 5e-2, "atol": 2e-2}
"""Operands with 8 bits of mantissa, over a window."""

SAME_FLOAT64_ANYWHERE: dict[str, Any] = {"rel": 1e-6, "abs": 1e-8}
"""Two updates in float64 on another processor: Adam's epsilon bounds the effect of rounding."""

SAME_BFLOAT16_ANYWHERE: dict[str, Any] = {"rel": 5e-2, "abs": 2e-2}
"""The same with operands of 8 bits, which processors round differently."""

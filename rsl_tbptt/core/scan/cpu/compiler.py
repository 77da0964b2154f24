"""``cells.c``, compiled for this processor when it is first needed: half a second per process."""

import ctypes
import functools
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("cells.c")

OPTIONS = {
    (torch.float32, torch.float32): ("-DREAL=float",),
    (torch.float64, torch.float64): ("-DREAL=double",),
    (torch.float32, torch.bfloat16): ("-DREAL=float", "-DBFLOAT16_OPERANDS"),
}
"""What ``cells.c`` can be compiled for: the dtypes of the state and of products' operands."""

_FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"),
    *("-fno-math-errno", "-fno-trapping-math"),  # what keeps loops from being vectorised
    *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
)
_SECONDS = 60.0

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_SIZES = (_INT, _INT, ctypes.c_int)
_ARGUMENTS = {
    "lstm_forward": (*_SIZES, _INT, *[_POINTER] * 8),
    "lstm_backward": (*_SIZES, *[_POINTER] * 8),
    "gru_forward": (*_SIZES, _INT, _INT, *[_POINTER] * 8),
    "gru_backward": (*_SIZES, _INT, *[_POINTER] * 9),
}


@functools.cache
def compiler() -> tuple[str, ...] | None:
    """Return the words of the C compiler's command, or None where there is none.

    ``$CC`` may hold options and a launcher, as in make: "gcc -m64", "ccache gcc". It is looked for
    on Linux alone: torch shares its threads with OpenMP code of gcc there.
    """
    words = tuple(shlex.split(_named()))
    return words if sys.platform == "linux" and words and shutil.which(words[0]) else None


def is_available() -> bool:
    """Return whether there is a C compiler; whether it can compile ``cells.c`` is seen later."""
    return compiler() is not None


def _named() -> str:
    """Return the compiler that the user names, or the system's."""
    return os.environ.get("CC", "cc")


@functools.cache
def load_cells(dtype: torch.dtype, operand_dtype: torch.dtype) -> ctypes.CDLL:
    """Compile and load the functions of ``cells.c``.

    Args:
        dtype: Of state and gates.
        operand_dtype: Of the operands of matrix products; with ``dtype`` a key of ``OPTIONS``.

    Returns:
        The library; its functions take sizes, then addresses as integers.

    Raises:
        NotImplementedError: If there is no compiler, or it fails.
    """
    command = compiler()
    if command is None:
        raise NotImplementedError(
            f"scan_engine 'compiled' needs a C compiler on Linux, and '{_named()}' is none: install"
            " gcc or name another one in CC."
        )
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "cells.so"
        options = (*_FLAGS, *OPTIONS[dtype, operand_dtype])
        words = [*command, *options, str(SOURCE), "-o", str(library), "-lm"]
        try:
            subprocess.run(words, check=True, capture_output=True, text=True, timeout=_SECONDS)
            cells = ctypes.CDLL(str(library))
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "stderr", None) or error
            raise NotImplementedError(
                "scan_engine 'compiled' needs gcc with OpenMP;"
                f" '{shlex.join(command)}' failed: {reason}"
            ) from error
    for name, arguments in _ARGUMENTS.items():
        function = getattr(cells, name)
        function.argtypes, function.restype = arguments, None
    return cells

"""The Triton engine on a CPU, in tests: it needs Triton, with which not every torch comes."""

import pytest

from scripts.benchmark import interpreter


def triton_engine_on_cpu():
    """Return a context that runs the Triton engines in the interpreter."""
    pytest.importorskip("triton.language", reason="this torch came without Triton")
    return interpreter.triton_engine_on_cpu()

"""Exact, fast truncated backpropagation through time for rsl_rl, Isaac Lab and mjlab.

Start reading at ``rsl_tbptt/core/windows.py``, then ``rsl_tbptt/core/accumulate.py``.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rsl_tbptt.algorithms import TbpttDistillation, TbpttPPO

__version__ = version("rsl-tbptt")

__all__ = ["TbpttDistillation", "TbpttPPO", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the algorithms on first use, so that ``rsl_tbptt.core`` stays free of rsl_rl.

    Raises:
        AttributeError: If there is no such public name.
    """
    if name in ("TbpttDistillation", "TbpttPPO"):
        from rsl_tbptt import algorithms

        return getattr(algorithms, name)
    raise AttributeError(f"module 'rsl_tbptt' has no attribute '{name}'")

"""Algorithms for rsl_rl's runners: ``class_name: "rsl_tbptt.algorithms:TbpttDistillation"``."""

from typing import TYPE_CHECKING, Any

from rsl_tbptt.compat import MODELS_ERA, require_era, rsl_rl_era

if TYPE_CHECKING:
    from rsl_tbptt.algorithms.distillation import TbpttDistillation
    from rsl_tbptt.algorithms.ppo import TbpttPPO

__all__ = ["TbpttDistillation", "TbpttPPO"]

rsl_rl_era()  # refuses releases that no part of this package supports


def __getattr__(name: str) -> Any:
    """Import an algorithm on first use: with rsl_rl 3.1.2 only the other modules here can be used.

    Raises:
        AttributeError: If there is no such public name.
        ImportError: If rsl_rl is 3.1.2.
    """
    if name not in __all__:
        raise AttributeError(f"module 'rsl_tbptt.algorithms' has no attribute '{name}'")
    require_era(MODELS_ERA, f"rsl_tbptt.algorithms.{name}")
    from rsl_tbptt.algorithms.distillation import TbpttDistillation
    from rsl_tbptt.algorithms.ppo import TbpttPPO

    return {"TbpttDistillation": TbpttDistillation, "TbpttPPO": TbpttPPO}[name]

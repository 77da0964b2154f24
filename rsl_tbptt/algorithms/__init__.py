"""Algorithms for rsl_rl's runners: ``class_name: "rsl_tbptt.algorithms:TbpttDistillation"``."""

from rsl_tbptt.algorithms.distillation import TbpttDistillation
from rsl_tbptt.algorithms.ppo import TbpttPPO

__all__ = ["TbpttDistillation", "TbpttPPO"]

"""Algorithms for rsl_rl's runners: ``class_name: "rsl_tbptt.algorithms:TbpttDistillation"``."""

from rsl_tbptt.algorithms.distillation import TbpttDistillation

__all__ = ["TbpttDistillation"]

"""Runners for what stock runners cannot do; never required."""

from rsl_tbptt.runners.distillation_runner import TbpttDistillationRunner

__all__ = ["TbpttDistillationRunner"]

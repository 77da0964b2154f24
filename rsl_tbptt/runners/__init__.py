"""Runners for what stock runners cannot do; never required."""

from rsl_tbptt.runners.distillation_runner import TbpttDistillationRunner
from rsl_tbptt.runners.on_policy_runner import TbpttOnPolicyRunner
from rsl_tbptt.stop_signals import STOPPED

__all__ = ["STOPPED", "TbpttDistillationRunner", "TbpttOnPolicyRunner"]

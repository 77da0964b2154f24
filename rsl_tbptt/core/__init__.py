"""Truncated BPTT in pure torch. Read ``windows.py``, then ``accumulate.py``."""

from rsl_tbptt.core.accumulate import SampleLosses, accumulate_group
from rsl_tbptt.core.rollout import Rollout
from rsl_tbptt.core.scan import recurrent_scan
from rsl_tbptt.core.windows import Window, num_steps_of_full_group, tbptt_schedule

__all__ = [
    "Rollout",
    "SampleLosses",
    "Window",
    "accumulate_group",
    "num_steps_of_full_group",
    "recurrent_scan",
    "tbptt_schedule",
]

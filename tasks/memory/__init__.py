"""A task in pure torch whose required memory length is a parameter."""

from rsl_tbptt.compat import rsl_rl_era

rsl_rl_era()  # without it an unsupported release would end in a bare KeyError

from rsl_tbptt_tasks.memory.recall import RecallEnv  # noqa: E402

__all__ = ["RecallEnv"]

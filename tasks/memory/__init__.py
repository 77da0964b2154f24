"""Tasks in pure torch whose required memory length is a parameter."""

from rsl_tbptt_tasks.memory.recall import RecallEnv

__all__ = ["RecallEnv"]

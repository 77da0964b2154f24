"""Tasks for Isaac Lab, mjlab and plain torch, importable as ``rsl_tbptt_tasks``."""

"""A task that needs memory, for rsl_rl alone."""

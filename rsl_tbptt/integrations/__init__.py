"""Config classes and runners for frameworks that host rsl_rl."""

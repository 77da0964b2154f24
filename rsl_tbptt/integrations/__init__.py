"""Config classes and runners for frameworks that host rsl_rl."""

from rsl_tbptt.compat import rsl_rl_era

rsl_rl_era()  # refuses releases that no part of this package supports

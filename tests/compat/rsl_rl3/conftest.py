"""These tests run in the environment of Isaac Lab 2.3, which has rsl_rl 3.1.2."""

from rsl_tbptt.compat import POLICY_ERA, rsl_rl_era

collect_ignore_glob = [] if rsl_rl_era() == POLICY_ERA else ["test_*.py"]

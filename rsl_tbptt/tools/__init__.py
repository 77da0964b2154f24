"""The command ``rsl-tbptt`` and the functions behind it, for use after a training."""

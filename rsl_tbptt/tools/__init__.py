"""The command ``rsl-tbptt`` and its functions, for use after a training."""

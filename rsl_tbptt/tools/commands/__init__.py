"""The command line ``rsl-tbptt``."""

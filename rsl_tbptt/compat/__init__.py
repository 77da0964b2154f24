"""What differs between releases of rsl_rl, and nothing else."""

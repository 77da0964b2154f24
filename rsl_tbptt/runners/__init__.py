"""Runners for what stock runners cannot do; never required."""

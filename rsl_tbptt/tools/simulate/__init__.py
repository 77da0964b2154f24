"""Policies in simulation: evaluate, play, memory and plan."""

"""Policies in simulation: evaluate, compare and memory."""

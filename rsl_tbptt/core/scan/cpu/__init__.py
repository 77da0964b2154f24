"""Engines made for CPUs: passes written out by hand, with buffers that are used again."""

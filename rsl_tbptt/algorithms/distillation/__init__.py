"""Distillation of a teacher into a (recurrent) student."""

"""Checkpoints: read without running code, compared before loading, written completely or not."""

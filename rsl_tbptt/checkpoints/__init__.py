"""Checkpoints: read without running code, compared before loading, written whole or not at all."""

"""The update that both algorithms share."""

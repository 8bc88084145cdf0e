"""Appends whole record batches exactly once."""

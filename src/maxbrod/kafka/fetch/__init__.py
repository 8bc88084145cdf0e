"""Reads whole record batches of ranges, and where logs begin and end."""

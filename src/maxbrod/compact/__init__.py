"""Merges small segments into large ones, without changing a record or an offset."""

"""Deletes the oldest segments of another tool's archive."""

"""Decides what a run of a backup reads, and what its rows are. Pure."""

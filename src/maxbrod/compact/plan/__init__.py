"""Decides what a compaction merges. Pure."""

"""Keeps records from being pruned, compacted by key or erased."""

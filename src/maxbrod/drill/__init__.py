"""Restores a sample, compares it, cleans up, and signs a report."""

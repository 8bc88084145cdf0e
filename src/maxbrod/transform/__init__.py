"""Spark expressions over records on their way: `--where` and `--select`."""

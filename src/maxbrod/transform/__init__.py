"""Spark SQL expressions over records that are restored or converted: `--where` and `--select`."""

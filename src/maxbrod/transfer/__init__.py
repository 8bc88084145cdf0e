"""Copies records or whole batches from a cluster or an archive into an archive of any layout, on Spark."""

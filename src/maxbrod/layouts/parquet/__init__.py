"""Parquet segments at levels, as CrowdStrike's kafka-replicator keeps them."""

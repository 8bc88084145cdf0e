"""Ingress from the tree of Parquet segments of kafka-replicator, with its topics of checkpoints and segment events."""

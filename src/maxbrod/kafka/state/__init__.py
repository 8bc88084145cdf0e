"""What a cluster is around its records, as values."""

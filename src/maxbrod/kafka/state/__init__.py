"""The state of a cluster around its records, as values."""

"""A DataFrame into an archive, or into Kafka exactly once."""

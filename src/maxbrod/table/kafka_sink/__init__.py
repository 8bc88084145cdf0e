"""A DataFrame into Kafka, exactly once."""

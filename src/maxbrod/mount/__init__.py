"""A read-only Kafka cluster over an archive."""

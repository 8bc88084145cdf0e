"""A restore into topics with another number of partitions."""

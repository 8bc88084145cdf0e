"""Layouts name, write and read the segments of archives. Bytes and objects; no Kafka, no catalog, no Spark."""

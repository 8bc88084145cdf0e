"""A client for Kafka's protocol: connections, metadata, fetch, produce, administration. Whole batches, never records.

A client belongs to one thread and one process: a task opens its own, and closures never capture one.
"""

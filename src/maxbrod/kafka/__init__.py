"""Kafka's wire protocol for data: connections, metadata, offsets, fetch. Whole record batches, never records.

A client belongs to one thread and one process: it is opened inside a task and never travels in a closure.
"""

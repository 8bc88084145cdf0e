"""A real Kafka cluster in a box: brokers, faults and test data on loopback. Tests, demo and benchmarks use it.

Nothing here runs in a backup or a restore. This file imports nothing: the reaper must start in an instant.
"""

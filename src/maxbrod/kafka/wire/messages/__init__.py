"""Messages of Kafka's protocol that kafka-python lacks, in the format from which it builds its own.

The JSON files here are the protocol's definitions; the library generates the classes.
"""

"""Messages of Kafka's protocol that kafka-python does not have, in the words it builds its own from.

The fields are those of the protocol's definition, next to this file; the library makes the classes.
"""

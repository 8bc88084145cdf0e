"""Encoded keys and values as Arrow columns: Avro and Protobuf, by compiled loops. Bytes in, columns out; no I/O."""

"""Encryption at rest: sealed objects, the ring of keys that opens them, and who holds a key of his own."""

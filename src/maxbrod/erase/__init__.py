"""Erasure: the records of a person leave an archive in place, and stay away."""

"""Benchmarks of maxbrod: part of the repository, not of the wheel. `maxbrod bench` runs them in a checkout."""

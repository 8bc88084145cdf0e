"""Comparing: what is compared with what, in which parts, and what follows from the parts' digests. Pure."""

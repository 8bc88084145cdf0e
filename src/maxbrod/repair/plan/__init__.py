"""The decisions of a repair, without any I/O: which slices are the archive, and why offsets have none."""

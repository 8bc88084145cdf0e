"""What a repair decides, without any I/O: which slices are the archive, and why offsets have none."""

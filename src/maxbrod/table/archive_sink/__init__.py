"""A DataFrame into an archive."""

"""SQL over an archive."""

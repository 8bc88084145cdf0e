"""Rebuilds a lost catalog from the objects of an archive, and takes damaged objects out of a catalog."""

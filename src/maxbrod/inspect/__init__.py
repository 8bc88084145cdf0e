"""Looks at an archive: `ls`, `show`, `gc`."""

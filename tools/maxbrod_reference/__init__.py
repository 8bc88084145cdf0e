"""Generates what follows from declared options and other code: docs/reference, schemas, keywords of functions."""

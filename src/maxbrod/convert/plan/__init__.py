"""Decides what a conversion copies at once, and which rows the new archive gets. Pure."""

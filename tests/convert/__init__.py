"""Conversions between layouts, and backups and restores in them."""

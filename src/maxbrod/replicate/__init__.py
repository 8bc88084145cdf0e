"""Replication through object storage: an archive between two clusters that do not reach each other."""

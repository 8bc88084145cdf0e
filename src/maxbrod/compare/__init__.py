"""Compares an archive or a topic with another topic, record by record."""

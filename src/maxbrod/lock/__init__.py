"""Extends and shows the locks of an archive's objects in S3 (Object Lock)."""

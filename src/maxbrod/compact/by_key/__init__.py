"""Compaction by key: of each key only the newest record stays, as the log cleaner of a broker would leave it."""

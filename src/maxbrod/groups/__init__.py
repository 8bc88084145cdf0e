"""Consumer groups of a restore: planned, moved, rolled back."""

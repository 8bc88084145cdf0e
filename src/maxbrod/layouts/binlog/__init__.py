"""The layout of itadventurer's kafka-backup: plain binary records, an index a segment, an index a partition."""

"""The layout of itadventurer's kafka-backup: plain binary records, one index per segment and per partition."""

"""A live cluster, or brokers' disks, into an archive."""

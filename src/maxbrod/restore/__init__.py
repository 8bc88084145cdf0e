"""An archive into a cluster, or onto brokers' disks."""

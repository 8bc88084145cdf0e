"""A broker's log directories, as they lie on its disks: only ever read."""

"""The log directories of brokers, as they are on their disks. `layout` only reads; cold restores also write."""

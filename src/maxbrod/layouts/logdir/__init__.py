"""The log directories of brokers, as they are on their disks. The layout only reads; cold restores also write."""

"""A restore into the log directories of stopped brokers."""

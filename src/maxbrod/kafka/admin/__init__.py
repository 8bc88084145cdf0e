"""Changes topics, rights, quotas and groups; each change has its own outcome."""

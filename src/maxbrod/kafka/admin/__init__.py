"""Changes topics, ACLs, quotas and groups. Each change has its own outcome."""

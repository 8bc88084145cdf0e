"""Takes records and runs out of an archive by a policy, and undoes that while the grace period lasts."""

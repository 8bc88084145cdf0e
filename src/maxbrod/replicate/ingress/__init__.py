"""Ingress: what an archive holds is appended to the destination, exactly once."""

"""Schema registries over HTTP: captured with a run, brought back with the same ids, or mapped to other ids."""

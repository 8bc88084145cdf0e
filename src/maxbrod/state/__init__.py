"""The state of a cluster as a run captured it: shown, compared with another run, and as files for other tools."""

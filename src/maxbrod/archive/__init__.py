"""An archive opened: objects, catalog, snapshots, topics and their incarnations."""

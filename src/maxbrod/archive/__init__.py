"""An open archive: objects, catalog, snapshots, topics and their incarnations."""

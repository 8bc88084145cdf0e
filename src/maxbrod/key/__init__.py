"""The keys of an encrypted archive: who may open it, and since when."""

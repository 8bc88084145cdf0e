"""What one task of a backup does, in a Python worker of Spark or anywhere else: fetch, check, write, tell."""

"""Spark: the session that jobs run in, its JVM, and how jobs run."""

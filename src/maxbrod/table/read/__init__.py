"""An archive as a Spark table: options, filters, splits, reading."""

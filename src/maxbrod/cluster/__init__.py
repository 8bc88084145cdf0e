"""Packs the environment of the driver as one file, which a Spark cluster needs to run the tasks."""

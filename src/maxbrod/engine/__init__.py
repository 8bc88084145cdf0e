"""Spark: the session that jobs run in. Only this folder and `datasource` import pyspark."""

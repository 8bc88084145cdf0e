"""What a Spark cluster needs to run the tasks: the environment of the driver, as one file."""

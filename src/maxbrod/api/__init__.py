"""The use cases: what the command line and Python programs call. Each is a function that returns a report."""

"""The command line that all verbs share: the command itself, output, progress, signals."""

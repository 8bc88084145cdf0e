"""What an auditor asks of an archive, as one signed document."""

"""The command line: one file per verb. Arguments in, one call of the layer below, a table or JSON out."""

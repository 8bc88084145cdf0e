"""Plans a restore: turns a request, the catalog and the target's state into one value that says what will be done.

Pure: no I/O, no clock, no randomness. The same inputs give the same plan. It is stored before anything is written.
"""

"""Plans a restore: from a request, the catalog and the target's state to one value that says all that will be done.

Pure: no I/O, no clock, no chance. The same inputs give the same plan, which is stored before anything is produced.
"""

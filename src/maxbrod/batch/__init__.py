"""Record batches, bytes only: walk, check, decode, encode, patch, select, replay. No I/O, no clock, no state.

`headers`, `patch`, `crc`, `compression` and `replay` serve the raw backup and restore paths and do not load numba,
which costs a process about two seconds the first time, unless records must be looked into. The rest may.
"""

"""Record batches, bytes only: walk, check, decode, encode, patch, select. No I/O, no clock, no state.

`headers`, `patch`, `crc` and `compression` serve the raw backup and restore paths and never load numba,
which costs a process about two seconds the first time. The rest may.
"""

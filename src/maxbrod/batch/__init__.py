"""Record batches, bytes only: walk, check, decode, encode, patch, replay. No I/O, no clock, no state.

`headers`, `patch`, `crc`, `compression` and `replay` serve the raw backup and restore paths. They load numba, which
costs a process about two seconds the first time, only when records must be decoded. The other modules may load it.
"""

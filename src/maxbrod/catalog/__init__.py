"""The catalog of an archive: a Delta table whose rows say which offsets are archived, where, and which are explained.

`rows`, `tiling` and `folding` are pure; `table`, `files`, `commits` and `catalog` touch storage, through delta-rs
only. Nothing here reads or writes a segment. docs/format.md describes the table.
"""

"""The catalog of an archive: a Delta table whose rows say which offsets are archived, where, and why others are not.

`schema`, `rows`, `validity` and `tiling` are pure; `table`, `files`, `commits` and `catalog` use a storage. Nothing
here reads or writes a segment. docs/format.md describes the table.
"""

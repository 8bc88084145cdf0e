"""The storage format that the documentation of osodevops kafka-backup has. `docs/layouts/kbs.md`: byte by byte."""

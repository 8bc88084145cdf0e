"""The storage format in the documentation of osodevops kafka-backup. `docs/layouts/kbs.md` describes every byte."""

"""The layout that osodevops kafka-backup, 0.17 to 0.25, writes. `docs/layouts/kbak.md` describes every byte."""

"""What osodevops kafka-backup, 0.17 to 0.25, really writes. `docs/layouts/kbak.md` has it byte by byte."""

"""`maxbrod copy`: an archive, or chosen topics of it, to another store."""

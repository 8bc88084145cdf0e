"""`maxbrod status`: whether an archive keeps its promises, one line each."""

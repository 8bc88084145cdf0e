"""Whether an archive is whole: the quick check and the deep one."""

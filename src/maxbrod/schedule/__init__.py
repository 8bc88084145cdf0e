"""`maxbrod run`: verbs at their times, supervised in one process, and messages when one of them fails."""

"""Tells people that jobs fail, that one is overdue, and that all is well again."""

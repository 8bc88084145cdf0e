"""The pages of the dashboard: pure functions from facts about an archive to values that a template shows."""

"""Wrong models for the check: one change of a good model each, and how many of them the check calls different."""

"""Programs with a budget of the whole process: how much they take, how long, and what else a user could do."""

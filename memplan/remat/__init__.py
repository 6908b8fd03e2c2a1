"""Rematerialization: values that are dropped and computed again, so that a budget is kept."""

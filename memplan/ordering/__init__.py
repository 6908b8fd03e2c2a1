"""Ordering: in which order operators run, so that the live peak is least."""

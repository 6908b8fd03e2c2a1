"""Operators: what is known of each of them, a file for each family."""

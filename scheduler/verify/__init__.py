"""Checkers: whether a program ends and every block reads what has been written. They share nothing with policies."""

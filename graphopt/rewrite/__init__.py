"""Rewriting: patterns, rules, the driver, and the check that the result equals the original."""

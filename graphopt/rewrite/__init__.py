"""Rewriting: patterns, rules, the driver, and taking back what the check objects to."""

"""Attention: the problem with its candidates, and the parts of its kernel."""

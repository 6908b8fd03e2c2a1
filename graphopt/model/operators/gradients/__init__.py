"""Gradients of operators: one rule for each, a file for each family."""

"""Checking whether two models, or a model and its program, compute the same: engines, feeds, tolerance."""

"""Measurements of memory plans: packing, order, recomputation, tiers."""

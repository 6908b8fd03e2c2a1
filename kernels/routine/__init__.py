"""Routines: kernels as plain loops over elements, for every operator that no template computes."""

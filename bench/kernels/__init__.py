"""Measurements of the kernels library: each script prints one table and its bars."""

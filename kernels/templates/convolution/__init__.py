"""Convolution: the problem, how operands are stored, and the ways to compute it."""

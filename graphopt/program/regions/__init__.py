"""Lowering: nodes of an optimized graph become regions, and regions become kernels."""

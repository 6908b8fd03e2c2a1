"""Tensor programs: expressions over buffers, loop nests, and the primitives that schedule them."""

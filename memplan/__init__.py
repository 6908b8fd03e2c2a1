"""Memory planning: where every tensor lives and why.

Lifetimes of buffers, their offsets in one arena, recomputation instead of keeping, and the placement in
several tiers of memory by integer linear programming. This release holds only the package's name and its
error class; the planner arrives with a later release.
"""

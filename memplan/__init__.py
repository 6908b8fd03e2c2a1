"""Memory plans: which bytes a buffer has, and how little is enough. Knows buffers and steps, not what computes them.

Part of graphopt.
"""

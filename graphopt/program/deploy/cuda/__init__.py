"""Bundles for NVIDIA GPUs: PTX, weights, tables of a program, and what runs them over the driver's interface."""

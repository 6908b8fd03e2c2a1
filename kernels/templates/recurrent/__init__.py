"""Recurrent layers: the problem with its candidates, a step of a cell, and the kernel."""

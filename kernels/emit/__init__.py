"""Emission: a listing becomes machine code with a small C interface that needs nothing but the C library."""

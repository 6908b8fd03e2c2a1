"""Packing: offsets for buffers whose lifetimes are given."""

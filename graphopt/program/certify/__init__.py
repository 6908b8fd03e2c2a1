"""Proving a bundle from what its library executes, by code that made none of it."""

"""Measurements: scripts that print the tables in the documents, beside the tests and not inside them."""

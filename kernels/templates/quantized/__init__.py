"""Arithmetic on bytes: quantisation, integer matrix products and convolutions through dot-product instructions."""

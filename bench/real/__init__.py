"""Trained models that users have, taken from the packages that carry them."""

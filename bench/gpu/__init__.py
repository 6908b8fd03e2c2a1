"""Measurements on a GPU, where one is at hand."""

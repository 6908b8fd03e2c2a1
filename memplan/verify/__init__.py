"""Checkers: whether a solution keeps its promises. They share nothing with any solver and name what is wrong."""

"""Levers: the ways to make a model need less memory, a file for each, from the one that changes least."""

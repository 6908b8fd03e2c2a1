"""Operators written as plain loops: every one that has no template, and the forms that a template refuses."""

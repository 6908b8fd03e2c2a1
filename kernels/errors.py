"""The one error class of kernels: everything the package refuses is raised as a subclass of it."""

from __future__ import annotations


class KernelsError(Exception):
    """A tensor program that kernels refuses; the message names the tensor, the fault, the way out."""

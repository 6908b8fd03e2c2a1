"""The errors of kernels: everything the package refuses is raised as a subclass of the first one."""

from __future__ import annotations


class KernelsError(Exception):
    """A tensor program that kernels refuses; the message names the tensor, the fault, the way out."""


class Undecided(KernelsError):
    """A question whose answer changes within the range of a free dim."""


class OfOneSize(Undecided):
    """Such a question that code asks of a number: it is made for one size."""

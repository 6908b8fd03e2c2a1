"""The one error class of memplan: everything the package refuses is raised as a subclass of it."""

from __future__ import annotations


class MemplanError(Exception):
    """A memory problem or plan that memplan refuses; the message names the buffer, the fault, the way out."""

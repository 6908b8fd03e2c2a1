"""Memory that the C library keeps for later: freed arrays stay in its heap, and count as the process's own."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable


def _trim() -> Callable[[int], int] | None:
    """The C library's function, where it has one: glibc's."""
    if sys.platform != "linux":
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


def give_back() -> None:
    """Give pages of the heap that nothing lies in back to the system."""
    trim = _trim()
    if trim is not None:
        trim(0)

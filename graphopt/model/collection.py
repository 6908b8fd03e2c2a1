"""Python's cyclic garbage collector, paused while a graph is read, rewritten, differentiated or lowered.

Graphs are made of cycles (a node knows its values, a value its node) and little of them becomes garbage before the end;
the collector looks through them again and again all the same, which takes a tenth of the passes' time and a third of
lowering's, and half of what it takes to read a step of 10,000 nodes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the collector, where it is on, and leave it as it was."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Pause the collector, and have it take for old what is there then: nearly nothing of modules becomes garbage.

    Else it would go through all of that several times, a tenth of the time of imports. Full collections still do.
    """
    was_on = gc.isenabled()
    with paused_collection():
        try:
            yield
        finally:
            if was_on and not gc.get_freeze_count():  # what somebody has frozen stays so
                gc.freeze()
                gc.unfreeze()

"""Names in sentences: those from strangers made fit for a terminal, and those that were likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

NEAREST = 5  # names offered for one that does not exist


def shown(text: str) -> str:
    """The text with control characters escaped, so that none reaches a terminal: "\\x1b[31m" for a change of colour."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def nearest(name: str, known: Sequence[str]) -> str:
    """The names that look most like `name`, as the end of a message; the first few where none does."""
    listed = list(dict.fromkeys(known))
    by_lower = {item.lower(): item for item in reversed(listed)}
    alike = [by_lower[item] for item in difflib.get_close_matches(name.lower(), by_lower, n=NEAREST, cutoff=0.6)]
    containing = [item for item in listed if name.lower() in item.lower()]
    close = list(dict.fromkeys((*alike, *containing)))[:NEAREST]
    if close:
        return f"the nearest names are {', '.join(close)}"
    more = f" and {len(listed) - NEAREST} more" if len(listed) > NEAREST else ""
    return f"there are {', '.join(listed[:NEAREST])}{more}" if listed else "there are none at all"

"""Names from strangers, made fit for a terminal."""

from __future__ import annotations


def shown(text: str) -> str:
    """The text with control characters escaped, so that none reaches a terminal: "\\x1b[31m" for a change of colour."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)

"""Words in sentences: names from strangers made fit for a terminal, names that were likely meant, counts, sizes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

Progress = Callable[[str], None]  # hears in a few words what is done now
ONCE = "once per installation"  # in what Progress hears of work that is not done again
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
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
        return f"the nearest {'name is' if len(close) == 1 else 'names are'} {_quoted(close)}"
    more = f" and {len(listed) - NEAREST} more" if len(listed) > NEAREST else ""
    some = f"there {'is' if len(listed) == 1 else 'are'} {_quoted(listed[:NEAREST])}{more}"
    return some if listed else "there are none at all"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{shown(name)}'" for name in names)


def steps(begin: int, end: int) -> str:
    """The steps of a half-open range as people count them: 3 to 7, both included."""
    return str(begin) if end == begin + 1 else f"{begin} to {end - 1}"


def binary_size(count: float) -> str:
    """Bytes with a binary unit: 6.89 MiB."""
    number = float(count)
    for unit in UNITS:
        if abs(number) < 1023.5 or unit == UNITS[-1]:
            return (
                f"{number:.0f} B"
                if unit == "B"
                else f"{number:.3g} {unit}"
                if number < 999.5
                else f"{number:.0f} {unit}"
            )
        number /= 1024
    raise AssertionError("the last unit returns")


def several(number: int, what: str) -> str:
    """A number of things, of one in the singular."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def silent(text: str) -> None:
    """Progress that nobody asked to hear."""

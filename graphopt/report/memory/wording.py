"""Bytes in binary units, as memory is bought and budgets are given."""

from __future__ import annotations

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


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

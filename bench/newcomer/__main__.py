"""The table of newcomers: 54 features beside the best tool that has each; `python -m bench.newcomer [--quick]`.

A row is checked by running the command line or the interface on small models; the few that no script can check are
judged by hand, with the reason. Start-up, processor time and the drop-in functions are compared with the peers that
are installed beside graphopt in the environment of `make bars`; other anchors by what they were found to do.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.bar import Bar, Sheet
from bench.newcomer import by_hand, command, exports, interface, plans, programs, starting
from bench.newcomer.place import Place
from bench.newcomer.row import Row, Seen, Worse
from bench.peers import OURS
from bench.script import main

ISSUE, NUMBER = 17, 2
ROWS: tuple[Row, ...] = tuple(
    sorted(
        (row for room in (command, exports, interface, plans, programs, starting) for row in room.ROWS),
        key=lambda row: row.number,
    )
)
LEAST = 45


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """What a newcomer meets, beside the best anchor: rows that are level or better."""
    lines = [
        (row.number, row.feature, row.anchor, row.verdict, row.text, f"by hand: {row.why}") for row in by_hand.ROWS
    ]
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), quick)
        for row in ROWS:
            seen = look(row, place)
            lines.append((row.number, row.feature, row.anchor, seen.verdict, seen.text, row.check.__doc__ or ""))
            sheet.console.print(f"{row.number:>2} {seen.verdict:<6}  {row.feature}: {seen.text}", markup=False)
    lines.sort()
    sheet.table("newcomers", ("row", "feature", "best anchor", "ours is", "today", "checked"), lines)
    worse = [str(number) for number, _, _, verdict, *_ in lines if verdict == "worse"]
    good = len(lines) - len(worse)
    figure = f"{good} of {len(lines)} (worse: {', '.join(worse) or 'none'}; {len(by_hand.ROWS)} judged by hand)"
    return [
        Bar(ISSUE, NUMBER, "newcomers: level with the best tool or better", f"{LEAST} of 54", figure, good >= LEAST)
    ]


def look(row: Row, place: Place) -> Seen:
    """What a row's check finds; a check that fails in its own way is a row that is worse."""
    try:
        return row.check(place)
    except Worse as found:
        return Seen("worse", str(found))
    except Exception as error:  # whatever a newcomer would meet
        return Seen("worse", f"the check failed: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main(measure)

"""The lines of `graphopt certify`."""

from __future__ import annotations

from graphopt.flows.records.certificate import Certificate
from graphopt.model.text import binary_size, several
from graphopt.report.screen import Screen, Table


def print_certificate(screen: Screen, record: Certificate) -> None:
    """A table of what was proved, tried and compared, with how much of it there was."""
    table = Table("property", "how", "of what", left=(0, 1, 2))
    shared = record.shared_arena_bytes
    arenas = f"the arena ({binary_size(record.arena_bytes)})"
    if shared is not None:
        arenas += f" and that of several workers ({binary_size(shared)})"
    rows = [
        ("files as the manifest says", "checked", several(record.files, "file")),
        ("memory", "proved", f"{several(record.places, 'operand')} of {several(record.runs, 'run')} in {arenas}"),
        ("values", "proved", f"{several(record.values, 'piece')} come from the runs that are meant"),
    ]
    if record.several:
        rows += [
            ("deadlock", "proved", f"none: {several(record.waits, 'wait')}, each for a run claimed before"),
            ("races", "proved", f"none: {several(record.pairs, 'pair')} of runs that share bytes are ordered"),
        ]
    calls = ", ".join(record.outside) or "nothing"
    rows.append(("no allocation in a run", "proved", f"of the C library it may call {calls}"))
    counts = ", ".join(map(str, record.threads))
    rows.append(
        ("equal bits", "tried", f"{several(record.feeds, 'fresh feed')} (seed {record.seed}), threads: {counts}")
    )
    if record.max_rel is not None:
        rows.append(
            ("equal to the model", "tried", f"{several(record.compared_feeds, 'feed')}, within {record.max_rel:.1e}")
        )
    for row in rows:
        table.add(*row)
    screen.table(table)
    screen.line(f"{'certified':<13} {record.bundle}")

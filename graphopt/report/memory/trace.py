"""The plan as a trace in Chrome's JSON form, which Perfetto and chrome://tracing open.

Time is the estimated time of the operators one after the other. There is a counter of the live bytes, a row with the
operators, and for each buffer a slice on a row of its own kind: rows stand in the order of offsets, so that the picture
is the arena.
"""

from __future__ import annotations

from typing import Any

import msgspec

from graphopt.flows.records.alias_classes import alias_classes
from graphopt.flows.records.memory import MemoryRecord

OPERATORS, ARENA, MOVES = 1, 2, 3  # process ids: Perfetto draws a group of rows for each
SHORTEST = 1.0  # microseconds; an operator without a time is still to be seen


def memory_trace(record: MemoryRecord) -> bytes:
    """The trace as JSON."""
    starts, now = [], 0.0
    for step in record.steps:
        starts.append(now)
        now += max(step.time / 1000, SHORTEST)
    starts.append(now)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": OPERATORS, "args": {"name": f"operators of {record.model}"}},
        {"ph": "M", "name": "process_name", "pid": ARENA, "args": {"name": "arena, rows by offset"}},
    ]
    for number, step in enumerate(record.steps):
        events.append(
            {
                "ph": "X", "pid": OPERATORS, "tid": 1, "name": step.operator, "cat": step.type, "ts": starts[number],
                "dur": starts[number + 1] - starts[number], "args": {"step": number, "again": step.again},
            }
        )  # fmt: skip
        events.append(
            {"ph": "C", "pid": OPERATORS, "name": "live bytes", "ts": starts[number], "args": {"bytes": step.live}}
        )
    shown = alias_classes(record.buffers)
    rows = {offset: row for row, offset in enumerate(sorted({one.root.offset for one in shown}))}
    for offset, row in rows.items():
        events.append(
            {"ph": "M", "name": "thread_name", "pid": ARENA, "tid": row + 1, "args": {"name": f"offset {offset:,}"}}
        )
    last = len(starts) - 1
    for one in shown:
        buffer, begin, end = one.root, starts[min(one.begin, last)], starts[min(one.end, last)]
        events.append(
            {
                "ph": "X", "pid": ARENA, "tid": rows[buffer.offset] + 1, "name": buffer.name, "ts": begin,
                "dur": end - begin,
                "args": {"bytes": buffer.bytes, "offset": buffer.offset, "steps": [one.begin, one.end],
                         "shape": list(buffer.shape), "dtype": buffer.dtype, "producer": buffer.producer},
            }
        )  # fmt: skip
    if record.tiers is not None:
        for move in record.tiers.moves:
            events.append(
                {
                    "ph": "i", "s": "p", "pid": MOVES, "tid": 1, "ts": starts[min(move.step, last)],
                    "name": f"{move.value}: {move.source} to {move.target}", "args": {"bytes": move.bytes},
                }
            )  # fmt: skip
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ns"})

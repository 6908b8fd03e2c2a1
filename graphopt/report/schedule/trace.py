"""The schedule as a trace in Chrome's JSON form, which Perfetto opens: a multiprocessor a group, a worker a row.

On a CPU a worker is a group of its own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from graphopt.flows.records.schedule import ScheduleRecord


def schedule_trace(record: ScheduleRecord) -> bytes:
    """The trace as JSON; times in microseconds."""
    place = "multiprocessor" if record.gpu else "worker"
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": f"{place} {number}"}}
        for number in sorted({span.multiprocessor for span in record.spans})
    ]
    for span in record.spans:
        events.append(
            {
                "ph": "X", "pid": span.multiprocessor, "tid": span.worker, "name": span.region,
                "ts": span.start / 1000, "dur": (span.end - span.start) / 1000, "args": {"blocks": span.blocks},
            }
        )  # fmt: skip
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ns"})

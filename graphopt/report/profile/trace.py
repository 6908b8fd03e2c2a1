"""The profile as a trace in Chrome's JSON form, which Perfetto opens: a worker a row, a block a bar."""

from __future__ import annotations

from typing import Any

import msgspec

from graphopt.flows.records.profile import ProfileRecord
from graphopt.report.profile.terminal import nodes_of


def profile_trace(record: ProfileRecord) -> bytes:
    """The trace as JSON; times in microseconds from the begin of the first block."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": record.program}}]
    events += (
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": f"worker {number}"}}
        for number in range(record.workers)
    )
    kept = record.blocks
    names = [nodes_of(line) for line in record.steps]
    for step, worker, block, begin, end in zip(kept.step, kept.worker, kept.block, kept.begin, kept.end, strict=True):
        line = record.steps[step]
        events.append(
            {
                "ph": "X", "pid": 0, "tid": worker, "name": names[step], "cat": (line.operators or (line.kernel,))[0],
                "ts": begin / 1000, "dur": (end - begin) / 1000,
                "args": {"step": step, "block": block, "kernel": line.kernel, "candidate": line.candidate},
            }
        )  # fmt: skip
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ns"})

"""The profile as a page: every block on its worker, the steps by time; one file, no network."""

from __future__ import annotations

from typing import Any

from graphopt.flows.records.profile import ProfileRecord
from graphopt.report.interactive import Texts, interactive_page
from graphopt.report.profile.terminal import nodes_of
from graphopt.report.schedule.terminal import duration


def profile_page(record: ProfileRecord) -> bytes:
    """The page, UTF-8."""
    busy = sum(worker.busy for worker in record.by_worker)
    whole = record.workers * record.wall
    return interactive_page(
        "profile.html",
        _data(record),
        ("profile.js",),
        {"duration": duration},
        record={"model": record.program},
        profile=record,
        mean=100 * busy / whole if whole else 0.0,
        rate=sum(line.flops for line in record.steps) / record.wall if record.wall else 0.0,
    )


def _data(record: ProfileRecord) -> dict[str, Any]:
    texts, steps, blocks = Texts(), record.steps, record.blocks
    return {
        "wall": max(blocks.end, default=0),
        "workers": record.workers,
        "steps": {
            "name": texts.numbers(map(nodes_of, steps)),
            "operator": texts.numbers((line.operators or (line.kernel,))[0] for line in steps),
            "kernel": texts.numbers(line.kernel for line in steps),
            "candidate": texts.numbers(line.candidate for line in steps),
            "blocks": [line.blocks for line in steps],
            "wall": [round(line.wall) for line in steps],
            "work": [round(line.work) for line in steps],
            "waited": [round(line.waited) for line in steps],
            "rate": [round(line.rate, 3) for line in steps],
            "share": [round(line.peak_share, 5) for line in steps],
            "constants": [line.constants for line in steps],
        },
        "spans": {
            "step": blocks.step,
            "row": blocks.worker,
            "block": blocks.block,
            "start": blocks.begin,
            "time": [end - begin for begin, end in zip(blocks.begin, blocks.end, strict=True)],
        },
        "strings": texts.listed,
    }

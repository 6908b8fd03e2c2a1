"""The schedule report as a page: every run on its worker, where time goes, the program; one file, no network."""

from __future__ import annotations

from typing import Any

from graphopt.flows.records.schedule import ScheduleRecord
from graphopt.report.interactive import Texts, interactive_page
from graphopt.report.schedule.terminal import BOUNDS, WAYS, duration, share_of_time


def schedule_page(record: ScheduleRecord) -> bytes:
    """The page, UTF-8."""
    parts = [("running blocks", record.busy), *((line.cause, line.time) for line in record.stalls)]
    return interactive_page(
        "schedule.html",
        _data(record),
        ("schedule.js",),
        {"duration": duration},
        record=record,
        bounds=BOUNDS,
        ways=WAYS,
        parts=[(label, time, share_of_time(record, time)) for label, time in parts],
        mean=100 * sum(record.utilisation) / max(len(record.utilisation), 1),
    )


def _data(record: ScheduleRecord) -> dict[str, Any]:
    """Times in whole nanoseconds: a bar of a nanosecond is seen by nobody."""
    texts = Texts()
    places = sorted({(span.multiprocessor, span.worker) for span in record.spans})
    row = {place: number for number, place in enumerate(places)}
    region = {line.region: number for number, line in enumerate(record.ran)}
    return {
        "gpu": record.gpu,
        "makespan": round(record.makespan),
        "whole": round(record.workers * record.makespan),
        "places": places,
        "utilisation": [round(share, 5) for share in record.utilisation],
        "regions": {
            "name": texts.numbers(line.region for line in record.ran),
            "operator": texts.numbers(line.operator for line in record.ran),
            "blocks": [line.blocks for line in record.ran],
            "time": [round(line.time) for line in record.ran],
            "start": [round(line.start) for line in record.ran],
            "end": [round(line.end) for line in record.ran],
        },
        "spans": {
            "row": [row[span.multiprocessor, span.worker] for span in record.spans],
            "region": [region[span.region] for span in record.spans],
            "blocks": [span.blocks for span in record.spans],
            "start": [round(span.start) for span in record.spans],
            "time": [round(span.end - span.start) for span in record.spans],
        },
        "strings": texts.listed,
        "program": record.program,
    }

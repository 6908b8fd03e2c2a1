"""docs/speed.md from the records in docs/benchmarks: `python -m bench.native_page > docs/speed.md`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.native import FOLDER, PEERS, SHORT, Line, by_family

HEAD = """# Speed

Native programs beside ONNX Runtime and OpenVINO, on every processor that they were measured on: `python -m
bench.native` adds to the records in `docs/benchmarks`, and this page is drawn from all of them. Models are those of
the zoo that compile whole, batch 1, float32 on our side. A figure is how many times longer the peer takes: the median
of pairs that took turns, with its 95 % bootstrap interval for a model. Families weigh the same; models below
{short:g} ms of one thread have a line of their own. OpenVINO's default may compute in bf16 where the processor has
units for it, which ours does not: it is no peer in float32, and printed to show what is left.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD.format(short=SHORT)]
    for file in sorted(FOLDER.glob("*.json")):
        record = json.loads(file.read_text())
        lines += _processor(record["processor"], record["records"])
    return "\n".join(lines)


def _processor(name: str, records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    latest = records[-1]
    found = [Line(**{**line, "ratios": {peer: tuple(one) for peer, one in line["ratios"].items()}})
             for line in latest["lines"]]  # fmt: skip
    peers = ", ".join(f"{peer} {version}" for peer, version in latest["peers"].items())
    entries = latest["machine"]
    told = ", ".join(f"{entry} {entries[entry][0]:g} {entries[entry][1]}" for entry in
                     ("clock", "multiply_adds", "l2_read", "l3_read", "memory_read") if entry in entries)  # fmt: skip
    yield f"## {name}\n"
    yield f"{latest['date']}, graphopt {latest['graphopt']}, {peers}. [Machine](machine.md): {told}.\n"
    yield from _table(("family", "threads", *PEERS), by_family(found))
    yield from _table(("model", "threads", *PEERS), [
        (line.model, line.threads, *(_ratio(line, peer) for peer in PEERS)) for line in found
    ])  # fmt: skip
    if len(records) > 1:
        yield (
            "Before, all families on one thread beside ONNX Runtime: "
            + ", ".join(f"{one['date']} {_whole(one)}" for one in records[:-1])
            + ".\n"
        )


def _whole(record: Mapping[str, Any]) -> str:
    found = [Line(**{**line, "ratios": {peer: tuple(one) for peer, one in line["ratios"].items()}})
             for line in record["lines"]]  # fmt: skip
    return next(str(row[2]) for row in by_family(found) if row[0] == "all families" and row[1] == 1)


def _ratio(line: Line, peer: str) -> str:
    if peer not in line.ratios:
        return "-"
    low, middle, high = line.ratios[peer]
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())

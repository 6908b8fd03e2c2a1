"""Bar 3: the zoo, ours beside the peers: nodes of the outputs that were judged right, and their size.

The onnx package's light networks are not among them: they have their own bar.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx

import models
from bench.bar import ISSUE, Bar, Sheet
from bench.judge import node_count
from bench.peers import OURS, PEERS
from bench.script import main
from bench.survey import BUILD, Record, survey

QUICK_SIZE = 100_000  # bytes; with --quick only light files below
SIZE_FACTOR = 1.02
SIZE_SLACK = 8_000  # bytes: a small model may grow by a few fused constants


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Nodes and bytes on every model of the zoo, beside the best peer that is right."""
    names = [name for name in models.names() if not quick or models.path(name).stat().st_size < QUICK_SIZE]
    compared = (*(peer for peer in PEERS if peer != optimizer), optimizer)
    records = survey(model_files(names), compared)
    rows, wrong, grown, behind = [], [], [], []
    for name in names:
        own = {record.peer: record for record in records if record.model == name}
        ours = own.pop(optimizer)
        source = model_file(name)
        before = source.stat().st_size
        best = min((record.judgement.nodes for record in own.values() if record.ok), default=None)
        if not ours.ok:
            wrong.append(name)
        elif ours.judgement.size > SIZE_FACTOR * before + SIZE_SLACK:
            grown.append(name)
        if best is not None and (not ours.ok or ours.judgement.nodes > best):
            behind.append(name)
        nodes_before = node_count(onnx.load(models.path(name)))
        peers_nodes = [_nodes(record) for record in own.values()]
        ratio = ours.judgement.size / before
        rows.append(
            (name, nodes_before, *peers_nodes, best, _nodes(ours), ratio, ours.seconds, ours.judgement.detail[:60])
        )
    sheet.table(
        "zoo: nodes (a verdict where the output is not right)",
        ("model", "before", *compared[:-1], "best peer", optimizer, "bytes", "seconds", "why"),
        rows,
    )
    return [
        _bar("zoo: outputs judged right", names, wrong),
        _bar("zoo: nodes <= the best peer that is right", names, behind),
        _bar(f"zoo: bytes <= {SIZE_FACTOR} x input + {SIZE_SLACK // 1000} kB", names, grown),
    ]


def model_files(names: list[str]) -> Iterator[tuple[str, Path]]:
    """Each name with its complete file."""
    for name in names:
        yield name, model_file(name)


def model_file(name: str) -> Path:
    """The complete file of a model of the zoo, made under build/ where its weights are seeded."""
    if name in models.onnx_light_names():
        return models.path(name)
    file = BUILD / "zoo" / f"{name}.onnx"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")  # another process may want the file at the same time
        onnx.save(models.load(name), part)
        part.replace(file)
    return file


def _nodes(record: Record) -> int | str:
    return record.judgement.nodes if record.ok else record.judgement.verdict


def _bar(text: str, names: list[str], faulty: list[str]) -> Bar:
    figure = f"{len(names) - len(faulty)}" + (f" (not: {', '.join(faulty)})" if faulty else "")
    return Bar(ISSUE, 3, text, f"{len(names)}", figure, not faulty)


if __name__ == "__main__":
    main(measure)

"""Bar 2: ONNX Runtime's own optimizer test models, read where they lie under DATA/ort-models.

A peer may fail on a model; node totals are compared only over the models on which all compared optimizers are right.
"""

from __future__ import annotations

import csv
from pathlib import Path

import onnx

from bench.bar import ISSUE, Bar, Sheet, not_measured
from bench.judge import external_files
from bench.peers import OURS, PEERS
from bench.script import main
from bench.survey import Record, survey

QUICK_STEP = 7  # with --quick, every seventh model
TEXT_OK = "ORT's test models: outputs judged right"
TEXT_NODES = "ORT's test models: nodes where every optimizer is right"


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Outputs judged right and nodes left on ONNX Runtime's optimizer test models."""
    if data is None:
        return [not_measured(2, TEXT_OK, "all"), not_measured(2, TEXT_NODES, "<= best peer")]
    listed = model_names(data)[:: QUICK_STEP if quick else 1]
    names = [name for name in listed if _complete(data / "ort-models" / name)]
    left_out = [(name,) for name in listed if name not in names]
    sheet.table("left out: their external data is not in the folder", ("model",), left_out)
    files = [(name, data / "ort-models" / name) for name in names]
    compared = (*(peer for peer in PEERS if peer != optimizer), optimizer)
    records = survey(files, compared)
    by_peer = {peer: {r.model: r for r in records if r.peer == peer} for peer in compared}
    common = [name for name in names if all(by_peer[peer][name].ok for peer in compared)]
    totals = {peer: sum(by_peer[peer][name].judgement.nodes for name in common) for peer in compared}
    sheet.table(
        f"ORT's test models: {len(names)}; all right on {len(common)}",
        ("optimizer", "right", "nodes on common models", "pair: its nodes", "pair: ours", "seconds"),
        [_row(peer, by_peer, names, totals[peer], optimizer) for peer in compared],
    )
    _failures(sheet, by_peer, names)
    ours = by_peer[optimizer]
    best_of = {name: _best(by_peer, name, optimizer) for name in names}
    worse = [name for name in names if best_of[name] < _nodes(ours[name])]
    sheet.table(
        "a peer is right with fewer nodes",
        ("model", "ours", "best peer"),
        [
            (name, ours[name].judgement.nodes if ours[name].ok else ours[name].judgement.verdict, best_of[name])
            for name in worse
        ],
    )
    right = sum(record.ok for record in ours.values())
    best = min(totals[peer] for peer in compared if peer != optimizer)
    return [
        Bar(ISSUE, 2, TEXT_OK, f"{len(names)}", f"{right}", right == len(names)),
        Bar(ISSUE, 2, TEXT_NODES, f"<= {best:,}", f"{totals[optimizer]:,}", totals[optimizer] <= best),
    ]


def model_names(data: Path) -> list[str]:
    """The models that the index lists, as paths below the folder."""
    with (data / "ort-models" / "index.csv").open(newline="") as file:
        return [row["path"] for row in csv.DictReader(file)]


def _complete(path: Path) -> bool:
    model = onnx.load(path, load_external_data=False)
    return all((path.parent / name).exists() for name in external_files(model))


Records = dict[str, dict[str, Record]]  # peer -> model -> record


def _row(peer: str, by_peer: Records, names: list[str], total: int, ours: str) -> tuple[object, ...]:
    records = by_peer[peer]
    pair = [name for name in names if records[name].ok and by_peer[ours][name].ok]
    return (
        peer,
        sum(record.ok for record in records.values()),
        total,
        sum(records[name].judgement.nodes for name in pair),
        sum(by_peer[ours][name].judgement.nodes for name in pair),
        sum(record.seconds for record in records.values()),
    )


def _failures(sheet: Sheet, by_peer: Records, names: list[str]) -> None:
    failed = [by_peer[peer][name] for peer in by_peer for name in names if not by_peer[peer][name].ok]
    rows = [(r.peer, r.judgement.verdict, r.model, r.judgement.detail.replace("\n", " ")[:120]) for r in failed]
    sheet.table("not right", ("optimizer", "verdict", "model", "why"), sorted(rows))


def _nodes(record: Record) -> int | float:
    return record.judgement.nodes if record.ok else float("inf")


def _best(by_peer: Records, name: str, ours: str) -> int | float:
    return min(_nodes(by_peer[peer][name]) for peer in by_peer if peer != ours)


if __name__ == "__main__":
    main(measure)

"""Trained models: each optimized with verification, planned and compiled, beside onnxslim and onnxsim.

Every step of every model has a process of its own, with a limit of time and of memory. A peer's result counts where
`bench.judge` finds it right, which draws other inputs than graphopt does.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx

from bench import peers
from bench.bar import Bar, Sheet
from bench.judge import JUDGE_VERSION, Judgement, judge, node_count
from bench.peers import OURS, peer_version
from bench.real.packages import trained_models
from bench.script import main
from bench.survey import BUILD, Kept, Record, digest
from bench.workers import Reply, Worker

ISSUE = 15
NUMBER = 6
PEERS = ("onnxslim", "onnxsim")
ANCHOR = "onnxslim"  # the peer whose CPU time ours is held against
CPU_FACTOR = 3.0
LIMITS = {"ours": 400.0, "again": 200.0, "peer": 200.0, "shapes": 200.0, "planned": 120.0, "compiled": 400.0}  # seconds


@dataclass
class Row:
    """What is known of one model."""

    model: str
    nodes: int
    size: int
    ours: Judgement | None = None
    status: str = ""  # of the verification, or how the process ended
    taken_back: list[str] = field(default_factory=list)
    cpu: float | None = None
    rest: list[str] = field(default_factory=list)  # rules that a second run still applies
    fixed_point: bool | None = None
    peers: dict[str, Record] = field(default_factory=dict)  # seconds are of CPU
    arena: int | str = ""
    compiled: str = ""
    lacking: list[str] = field(default_factory=list)

    @property
    def best(self) -> int | None:
        """The nodes of the better peer that is right."""
        return min((record.judgement.nodes for record in self.peers.values() if record.ok), default=None)

    @property
    def right(self) -> bool:
        """Whether our result is verified by us and found right here."""
        return self.ours is not None and self.ours.verdict == "ok" and self.status == "verified"


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Trained models of packages: verified, nodes, bytes, CPU time beside onnxslim, and what compiles whole."""
    files, faults = trained_models()
    rows = []
    for name, source in files:
        row = examine(name, source, optimized_only=quick)
        rows.append(row)
        sheet.console.print(_line(row))
    _tables(sheet, rows)
    for fault in faults:
        sheet.console.print(f"not measured: {fault}")
    return _bars(rows, faults)


def examine(name: str, source: Path, *, optimized_only: bool = False) -> Row:
    """Every step on one model; neither memory nor compile where it is to be `optimized_only`."""
    row = Row(name, node_count(onnx.load(source)), source.stat().st_size)
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="real-", dir=BUILD))
    judging = Worker()  # one for all, since it remembers what the original gave
    try:
        _optimize(row, source, folder, judging)
        for peer in PEERS:
            row.peers[peer] = _peer(peer, name, source, folder, judging)
        if not optimized_only:
            sizes = judging.call("bench.real.work:shapes", str(source), limit=LIMITS["shapes"])
            _deploy(row, source, sizes.value if sizes.kind == "value" else {})
    finally:
        judging.__exit__()
        shutil.rmtree(folder)
    return row


def _deploy(row: Row, source: Path, shapes: dict[str, list[int]]) -> None:
    planned = _call("planned", OURS, str(source), shapes)
    row.arena = planned.value["arena"] if planned.kind == "value" else _said(planned)
    compiled = _call("compiled", OURS, str(source), shapes)
    if compiled.kind == "value":
        row.lacking = compiled.value["fallback"]
        row.compiled = "in part" if row.lacking else "whole"
    else:
        row.compiled = _said(compiled)


def _optimize(row: Row, source: Path, folder: Path, judging: Worker) -> None:
    first, second = folder / "ours.onnx", folder / "again.onnx"
    reply = _call("ours", OURS, str(source), str(first))
    if reply.kind != "value":
        row.status = _said(reply)
        return
    row.cpu, row.taken_back = reply.value["cpu"], reply.value["taken_back"]
    row.status = reply.value["status"]
    if row.status != "verified":
        row.status += f": {reply.value['reason']}"
    row.ours = judge(judging, source, first)
    reply = _call("again", OURS, str(first), str(second), bool(row.taken_back))
    if reply.kind == "value":
        row.rest, row.fixed_point = reply.value["rules"], reply.value["same"]
    else:
        row.rest, row.fixed_point = [_said(reply)], False


def _peer(peer: str, name: str, source: Path, folder: Path, judging: Worker) -> Record:
    """What a peer makes of the model, from an earlier run where nothing has changed since."""
    kept = Kept(BUILD / "bench" / "real_peers.json")
    key = f"{digest(source)} {peer} {peer_version(peer)} judge{JUDGE_VERSION}"
    record = kept.get(key, name, peer)
    if record is None:
        output = folder / f"{peer}.onnx"
        reply = _call("peer", peer, peer, str(source), str(output))
        if reply.kind != "value":
            record = Record(name, peer, Judgement(reply.kind, reply.text[:500]), reply.seconds)
        else:
            record = Record(name, peer, judge(judging, source, output), reply.value["cpu"])
        kept.put(key, record)
    return record


def _call(step: str, optimizer: str, *arguments: Any) -> Reply:
    """One step in a process of its own; what it has to import is imported before."""
    with Worker() as worker:
        peers.warm_up(worker, optimizer)
        return worker.call(f"bench.real.work:{step}", *arguments, limit=LIMITS[step])


def _said(reply: Reply) -> str:
    """How a step ended that gave no result."""
    return f"stopped after {reply.seconds:.0f} s" if reply.kind == "timeout" else reply.text.splitlines()[0][:300]


def _nodes(judgement: Judgement | None) -> int | str:
    if judgement is None:
        return "-"
    return judgement.nodes if judgement.verdict == "ok" else judgement.verdict


def _line(row: Row) -> str:
    peer = {name: f"{_nodes(record.judgement)} in {record.seconds:.1f} s" for name, record in row.peers.items()}
    cpu = "-" if row.cpu is None else f"{row.cpu:.1f} s"
    return (
        f"{row.model}: {row.nodes} -> {_nodes(row.ours)} nodes in {cpu}, {row.status}; {peer}; "
        f"compiled: {row.compiled}; taken back: {len(row.taken_back)}"
    )


def _tables(sheet: Sheet, rows: list[Row]) -> None:
    sheet.table(
        "trained models: nodes (a verdict where the result is not right), kB, CPU seconds",
        ("model", "before", *PEERS, OURS, "kB before", "kB after", "feeds", "verified", "taken back",
         "cpu", *(f"cpu {peer}" for peer in PEERS)),
        [
            (row.model, row.nodes, *(_nodes(row.peers[peer].judgement) for peer in PEERS), _nodes(row.ours),
             row.size // 1000, None if row.ours is None else row.ours.size // 1000,
             None if row.ours is None else row.ours.feeds, row.status[:60], len(row.taken_back),
             row.cpu, *(row.peers[peer].seconds for peer in PEERS))
            for row in rows
        ],
    )  # fmt: skip
    sheet.table(
        "trained models: a second run, memory, compile",
        ("model", "fixed point", "rules of the second run", "arena", "compiled", "lacking"),
        [
            (row.model, row.fixed_point, ", ".join(row.rest), row.arena, row.compiled[:160], _kinds(row.lacking))
            for row in rows
        ],
    )
    sheet.table(
        "trained models: rewrites taken back",
        ("model", "rewrite"),
        [(row.model, text) for row in rows for text in row.taken_back],
    )
    lacking = Counter(operator.split()[0] for row in rows for operator in row.lacking)
    sheet.table("operators that lack a kernel", ("operator", "nodes"), sorted(lacking.items(), key=lambda one: -one[1]))
    sheet.tables["rows"] = [
        {**asdict(row), "peers": {name: asdict(record) for name, record in row.peers.items()}} for row in rows
    ]


def _kinds(operators: list[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in Counter(one.split()[0] for one in operators).items())


def _bars(rows: list[Row], faults: tuple[str, ...]) -> list[Bar]:
    ours = sum(row.cpu or 0.0 for row in rows if row.cpu is not None and row.peers[ANCHOR].ok)
    anchor = sum(row.peers[ANCHOR].seconds for row in rows if row.cpu is not None and row.peers[ANCHOR].ok)
    ratio = ours / anchor if anchor else None
    stopped = sum(row.cpu is None for row in rows)
    return [
        _bar("optimized and verified", rows, [row for row in rows if not row.right], faults),
        _bar("no more nodes than the better right peer", rows, [
            row for row in rows if row.best is not None and (row.ours is None or row.ours.nodes > row.best)
        ], faults),
        _bar("not grown", rows, [row for row in rows if row.ours is None or row.ours.size > row.size], faults),
        _bar("a second run changes nothing", rows, [row for row in rows if not row.fixed_point], faults),
        Bar(ISSUE, NUMBER, f"trained models: CPU seconds with verification / {ANCHOR} without", f"<= {CPU_FACTOR:g}",
            "-" if ratio is None else f"{ratio:.2f}" + (f", without {stopped} stopped" if stopped else ""),
            None if ratio is None or faults else ratio <= CPU_FACTOR and not stopped),
    ]  # fmt: skip


def _bar(text: str, rows: list[Row], faulty: list[Row], faults: tuple[str, ...]) -> Bar:
    figure = f"{len(rows) - len(faulty)}" + (f" (not: {', '.join(row.model for row in faulty)})" if faulty else "")
    missing = f"; {len(faults)} packages were not to be had" if faults else ""
    met = None if faults and not faulty else not faulty
    return Bar(ISSUE, NUMBER, f"trained models: {text}", f"{len(rows)}", figure + missing, met)


if __name__ == "__main__":
    main(measure)

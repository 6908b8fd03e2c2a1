"""Runs optimizers over model files and judges what they write; what peers did is kept and not done again.

A peer's record is kept in a JSON file under the digest of the model, the peer's version and the judge's: so that a
rerun redoes only graphopt.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import peers
from bench.judge import JUDGE_VERSION, Judgement, judge
from bench.workers import Worker

BUILD = Path(__file__).resolve().parent.parent / "build"


@dataclass(frozen=True, slots=True)
class Record:
    """What one optimizer did with one model."""

    model: str
    peer: str
    judgement: Judgement
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the output was judged good."""
        return self.judgement.verdict == "ok"


class Kept:
    """Records of earlier runs, in one JSON file."""

    def __init__(self, file: Path = BUILD / "bench" / "peers.json") -> None:
        self._file = file
        self._rows: dict[str, dict[str, object]] = json.loads(file.read_text()) if file.exists() else {}

    def get(self, key: str, model: str, peer: str) -> Record | None:
        """The record kept under `key`, if there is one."""
        row = self._rows.get(key)
        if row is None:
            return None
        return Record(model, peer, Judgement(**row["judgement"]), row["seconds"])  # type: ignore[arg-type]

    def put(self, key: str, record: Record) -> None:
        """Keep `record` and write the file."""
        self._rows[key] = {
            "model": record.model, "judgement": asdict(record.judgement), "seconds": round(record.seconds, 3),
        }  # fmt: skip
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._rows, indent=0, sort_keys=True) + "\n")


def survey(
    models: Iterable[tuple[str, Path]],
    optimizers: tuple[str, ...],
    *,
    kept: Kept | None = None,
    tell: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """One record per model and optimizer, model by model. `tell` hears of each record as it is made.

    Outputs are written to a temporary folder and removed once they are judged.
    """
    kept = kept or Kept()
    workers: dict[str, Worker] = {}
    judging = Worker()
    records = []
    try:
        for model, source in models:
            content = digest(source)
            for name in optimizers:
                key = f"{content} {name} {_version(name)} judge{JUDGE_VERSION}"
                record = None if name in peers.OWN else kept.get(key, model, name)
                if record is None:
                    if name not in workers:
                        workers[name] = Worker()
                        peers.warm_up(workers[name], name)
                    record = _run(workers[name], judging, name, model, source)
                    if name not in peers.OWN:
                        kept.put(key, record)
                    tell(record)
                records.append(record)
    finally:
        for worker in (*workers.values(), judging):
            worker.__exit__()
    return records


def _run(worker: Worker, judging: Worker, name: str, model: str, source: Path) -> Record:
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="output-", dir=BUILD))
    output = folder / "model.onnx"
    try:
        reply = peers.optimize(worker, name, source, output)
        if reply.kind != "value":
            judgement = Judgement(reply.kind, reply.text[:500])
        elif not output.exists():
            judgement = Judgement("exception", "no output was written")
        else:
            judgement = judge(judging, source, output)
        return Record(model, name, judgement, reply.seconds)
    finally:
        shutil.rmtree(folder)


def digest(source: Path) -> str:
    """Of the model's content; models of one name and different seeds or versions differ."""
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _version(name: str) -> str:
    # Ours is never kept, and may run from a checkout that is not installed.
    return "" if name in peers.OWN else peers.peer_version(name)

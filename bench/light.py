"""Bar 1: the nine light networks of the onnx package, whose outputs the onnx project recorded.

Nodes are counted without ConstantOfShape, which makes these files' weights: to keep such nodes is right, since the
weights they stand for would make the files thousands of times larger.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import models
from bench import peers
from bench.bar import ISSUE, Bar, Sheet
from bench.judge import all_nodes, session
from bench.peers import OURS
from bench.script import main
from bench.survey import BUILD
from bench.workers import Worker

MOST_NODES = 1227  # all nine together, without ConstantOfShape
MOST_BYTES = 650_000  # all nine together
RELATIVE, ABSOLUTE = 1e-3, 1e-7  # the tolerances of onnx's own test runner for these models
CHECK_LIMIT = 120.0  # seconds


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Nodes, bytes and recorded outputs of the nine light networks."""
    rows = []
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="light-", dir=BUILD))
    try:
        with Worker() as optimizing, Worker() as checking:
            peers.warm_up(optimizing, optimizer)
            for name in models.onnx_light_names():
                output = folder / f"{name}.onnx"
                reply = peers.optimize(optimizing, optimizer, models.path(name), output)
                fault = f"{reply.kind}: {reply.text}"[:200] if reply.kind != "value" else ""
                if not fault:
                    answer = checking.call("bench.light:check", name, str(output), limit=CHECK_LIMIT)
                    fault = answer.value if answer.kind == "value" else f"{answer.kind}: {answer.text}"[:200]
                before = _figures(models.path(name))
                after = _figures(output) if output.exists() else before
                rows.append((name, before[0], after[0], before[1], after[1], reply.seconds, fault or "ok"))
    finally:
        shutil.rmtree(folder)
    sheet.table(
        "light networks (nodes without ConstantOfShape)",
        ("model", "nodes before", "nodes", "bytes before", "bytes", "seconds", "check"),
        rows,
    )
    nodes, size = sum(row[2] for row in rows), sum(row[4] for row in rows)
    right = sum(row[6] == "ok" for row in rows)
    return [
        Bar(ISSUE, 1, "light networks: nodes", f"<= {MOST_NODES:,}", f"{nodes:,}", nodes <= MOST_NODES),
        Bar(ISSUE, 1, "light networks: bytes", f"<= {MOST_BYTES:,}", f"{size:,}", size <= MOST_BYTES),
        Bar(ISSUE, 1, "light networks: recorded outputs", f"{len(rows)}", f"{right}", right == len(rows)),
    ]


def check(name: str, output: str) -> str:
    """Inside a worker: what is wrong with `output`, made from the light network `name`; empty if nothing."""
    try:
        onnx.checker.check_model(output, full_check=True)
    except Exception as error:
        return f"checker: {error}"[:200]
    recorded = models.recorded_io(name)
    got: list[Any] = session(output).run(None, recorded.inputs)
    for (value, expected), result in zip(recorded.outputs.items(), got, strict=True):
        if result.shape != expected.shape:
            return f"{value}: shape {result.shape} instead of {expected.shape}"
        if not np.allclose(result, expected, rtol=RELATIVE, atol=ABSOLUTE):
            return f"{value}: off by up to {np.abs(result - expected).max():.2g}"
    return ""


def _figures(file: Path) -> tuple[int, int]:
    """Nodes without ConstantOfShape, and bytes."""
    model = onnx.load(file)
    return sum(node.op_type != "ConstantOfShape" for node in all_nodes(model)), file.stat().st_size


if __name__ == "__main__":
    main(measure)

"""Bar 4: one small model per capability, and what the output must look like if the capability is there.

Two tables: DATA/capabilities (a model and its `reached_when` per row) and our own in tests/capability_rows.py. In
`reached_when`, max_nodes counts the main graph and max_all the subgraphs too, neither counts Constant; max_op and
min_op name an operator and how often it may or must stand anywhere; max_bytes is the size of the output file.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from bench import peers
from bench.bar import ISSUE, Bar, Sheet, not_measured
from bench.judge import all_nodes, judge
from bench.peers import OURS
from bench.script import main
from bench.survey import BUILD
from bench.workers import Worker

TEXT_DATA = "capabilities: the outside rows"
TEXT_OWN = "capabilities: our own rows"
OWN_ROWS = "tests.capability_rows"


@dataclass(frozen=True, slots=True)
class Case:
    """One capability: a model file, and whether an output file shows it."""

    name: str
    source: Path
    reached: Callable[[Path], bool]


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Capabilities reached, each with its result compared in ONNX Runtime."""
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="capabilities-", dir=BUILD))
    try:
        bars = []
        if data is None:
            bars.append(not_measured(4, TEXT_DATA, "all"))
        else:
            bars.append(_measured(sheet, TEXT_DATA, _outside_cases(data / "capabilities"), folder, optimizer))
        if importlib.util.find_spec(OWN_ROWS) is None:
            bars.append(not_measured(4, TEXT_OWN, "all", f"not measured: there is no {OWN_ROWS}"))
        else:
            bars.append(_measured(sheet, TEXT_OWN, _own_cases(folder), folder, optimizer))
        return bars
    finally:
        shutil.rmtree(folder)


def _measured(sheet: Sheet, text: str, cases: list[Case], folder: Path, optimizer: str) -> Bar:
    rows = []
    with Worker() as optimizing, Worker() as judging:
        peers.warm_up(optimizing, optimizer)
        for case in cases:
            rows.append((case.name, _outcome(case, folder / "output.onnx", optimizing, judging, optimizer)))
    missed = [name for name, outcome in rows if outcome != "reached"]
    sheet.table(text, ("capability", "outcome"), rows)
    reached = len(rows) - len(missed)
    figure = f"{reached}" + (f" (not: {', '.join(missed)})" if missed else "")
    return Bar(ISSUE, 4, text, f"{len(rows)}", figure, not missed)


def _outcome(case: Case, output: Path, optimizing: Worker, judging: Worker, optimizer: str) -> str:
    output.unlink(missing_ok=True)
    reply = peers.optimize(optimizing, optimizer, case.source, output)
    if reply.kind != "value":
        return f"{reply.kind}: {reply.text}"[:200]
    judgement = judge(judging, case.source, output)
    if judgement.verdict != "ok":
        return f"{judgement.verdict}: {judgement.detail}"[:200]
    return "reached" if case.reached(output) else "not reached"


def _outside_cases(folder: Path) -> list[Case]:
    rows = json.loads((folder / "rows.json").read_text())
    return [
        Case(row["capability"], folder / f"{name}.onnx", partial(shows, wanted=row["reached_when"]))
        for name, row in sorted(rows.items())
    ]


def shows(output: Path, wanted: dict[str, Any]) -> bool:
    """Whether the file meets everything that `reached_when` asks for."""
    model = onnx.load(output)
    main_nodes = sum(node.op_type != "Constant" for node in model.graph.node)
    operators = [node.op_type for node in all_nodes(model)]
    checks: dict[str, Callable[[Any], bool]] = {
        "max_nodes": lambda most: main_nodes <= most,
        "max_all": lambda most: sum(op != "Constant" for op in operators) <= most,
        "max_op": lambda pair: operators.count(pair[0]) <= pair[1],
        "min_op": lambda pair: operators.count(pair[0]) >= pair[1],
        "max_bytes": lambda most: output.stat().st_size <= most,
    }
    return all(checks[kind](value) for kind, value in wanted.items())


def _own_cases(folder: Path) -> list[Case]:
    cases = []
    for position, row in enumerate(importlib.import_module(OWN_ROWS).ROWS):
        source = folder / f"own-{position}.onnx"
        onnx.save(row.model(), source)
        cases.append(Case(row.name, source, partial(_row_reached, row.reached)))
    return cases


def _row_reached(reached: Callable[[onnx.ModelProto], bool], output: Path) -> bool:
    return reached(onnx.load(output))


if __name__ == "__main__":
    main(measure)

"""Which models compile whole: trained ones of packages, the zoo, and ONNX Runtime's own test models (DATA).

Counted is every file that ONNX Runtime runs at sizes that were found for it; models with strings, sequences or
optionals are apart. Whole programs of trained models are timed beside ONNX Runtime with all its optimizations, one
thread, by turns; `--quick` times nothing and takes every seventh of ONNX Runtime's models.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.judge import all_nodes, first_feed
from bench.kernels.timing import Call, Peer, pin, ratio, readings
from bench.ort_models import model_names
from bench.peers import OURS
from bench.real.packages import trained_models
from bench.script import main
from bench.workers import Worker
from bench.zoo import model_file
from graphopt.errors import GraphoptError

ISSUE, WHOLE, FAST = 20, 2, 3
LIMITS = {"sizes": 200.0, "compiled": 500.0}  # seconds
QUICK_STEP = 7
ROUNDS = 7
LEAST = 0.5  # of ONNX Runtime's speed, of any model
LIMIT = 60  # characters of a fallback's sentence that are shown, times ten


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model that is not whole, and one for each that is timed."""
    trained, faults = trained_models()
    groups: dict[str, Sequence[tuple[str, Path]]] = {
        "trained": trained, "zoo": [(name, model_file(name)) for name in models.names()],
    }  # fmt: skip
    if data is not None:
        names = model_names(data)[:: QUICK_STEP if quick else 1]
        groups["onnxruntime"] = [(name, data / "ort-models" / name) for name in names]
    rows, rest, ratios = [], [], []
    counts: Counter[tuple[str, str]] = Counter()
    for group, files in groups.items():
        for name, file in files:
            outcome = _outcome(file, timed=group == "trained" and not quick)
            counts[group, outcome["kind"]] += 1
            if outcome["kind"] not in ("whole", "not run"):
                rest.append((name, outcome["kind"], outcome["why"]))
            if "ratio" in outcome:
                rows.append((name, *outcome["ratio"]))
                ratios.append(outcome["ratio"])
    sheet.table("models by outcome", ("group", "outcome", "models"), [(*one, n) for one, n in sorted(counts.items())])
    sheet.table("not whole", ("model", "outcome", "why"), rest)
    sheet.table("trained models: ONNX Runtime / ours", ("model", "from", "ratio", "to"), rows)
    for fault in faults:
        sheet.console.print(f"not measured: {fault}")
    possible = sum(n for (_, kind), n in counts.items() if kind in ("whole", "parts", "refused", "fault"))
    whole = sum(n for (_, kind), n in counts.items() if kind == "whole")
    each = ", ".join(f"{group} {counts[group, 'whole']}" for group in groups)
    figure = f"{whole} of {possible} ({each})"
    bars = [Bar(ISSUE, WHOLE, "models that compile whole", "all", figure, whole == possible and not faults)]
    if ratios:
        mean = math.exp(sum(math.log(one[1]) for one in ratios) / len(ratios))
        slow = [row[0] for row in rows if row[3] < LEAST]
        bars.append(
            Bar(
                ISSUE, FAST, "trained models, one thread", f"1.0 x ONNX Runtime, none below {LEAST}",
                f"{mean:.2f}; below: {', '.join(slow) or 'none'}", mean >= 1.0 and not slow,
            )
        )  # fmt: skip
    return bars


def _outcome(file: Path, *, timed: bool) -> dict[str, Any]:
    """What becomes of one model, in a process of its own."""
    with Worker() as worker:
        sizes = worker.call("bench.whole:shapes", str(file), limit=LIMITS["sizes"])
        if sizes.kind != "value" or sizes.value is None:
            return {"kind": "not run", "why": sizes.text[:LIMIT]}
        if not sizes.value["numeric"]:
            return {"kind": "strings, sequences or optionals", "why": ""}
        reply = worker.call("bench.whole:compiled", str(file), sizes.value["shapes"], timed, limit=LIMITS["compiled"])
        if reply.kind != "value":
            return {"kind": "fault", "why": f"{reply.kind}: {reply.text}"[: 10 * LIMIT]}
        found: dict[str, Any] = reply.value
        return found


def shapes(source: str) -> dict[str, Any] | None:
    """Inside the worker: dims of inputs with which a model runs, and whether all its values are numbers."""
    feed = first_feed(source)
    if not feed:
        return None
    return {"shapes": {name: list(np.shape(one)) for name, one in feed.items() if np.ndim(one)},
            "numeric": _is_numeric(onnx.load(source))}  # fmt: skip


def _is_numeric(model: onnx.ModelProto) -> bool:
    ends = [*model.graph.input, *model.graph.output]
    if not all(one.type.HasField("tensor_type") for one in ends):
        return False
    if any(one.type.tensor_type.elem_type == onnx.TensorProto.STRING for one in ends):
        return False
    if any(node.op_type == "Cast" and _casts_to_text(node) for node in all_nodes(model)):
        return False
    kinds = {node.op_type for node in all_nodes(model)}
    return not any(kind.startswith(("Sequence", "Optional", "String")) for kind in kinds)


def _casts_to_text(node: onnx.NodeProto) -> bool:
    return any(one.name == "to" and one.i == onnx.TensorProto.STRING for one in node.attribute)


def compiled(source: str, sizes: Mapping[str, list[int]], timed: bool) -> dict[str, Any]:
    """Inside the worker: whether a program is whole, and how it compares with ONNX Runtime."""
    try:
        program = graphopt.compile(source, shapes=sizes, threads=1)
    except GraphoptError as error:
        return {"kind": "refused", "why": str(error)[: 10 * LIMIT]}
    found: dict[str, Any] = {"kind": "parts" if program.fallback else "whole", "why": "; ".join(program.fallback)[:600]}
    if timed and not program.fallback:
        pin()
        feed = {name: np.asarray(value) for name, value in first_feed(source).items()}
        try:
            sides: dict[str, Call] = {"ours": program.program.bind(feed), "peer": Peer(Path(source).read_bytes(), feed)}
            taken = readings(sides, ROUNDS)
        except RuntimeError:  # ONNX Runtime does not bind outputs that a model declares with other dims than they have
            return found
        one = ratio(taken["peer"], taken["ours"])
        found["ratio"] = (one.low, one.median, one.high)
    return found


if __name__ == "__main__":
    main(measure)

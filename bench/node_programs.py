"""The onnx package's node tests as programs: which compile whole, and whether they give what the tests record.

Counted are *numeric* tests: all inputs and outputs are tensors of any type but strings and complex numbers, and no node
is of a preview domain. The test's inputs stay inputs; its values are those that `compile` compares with. A result is
held to the test's own tolerances; one of float16 or bfloat16 that is beyond them and within those of the check stands
in a line of its own, and is not whole: ONNX does not say how often an operator rounds. One of a random operator is
held to its type and dims.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import graphopt
from bench.bar import Bar, Sheet
from bench.node_tests import node_test, value_of
from bench.peers import OURS
from bench.script import main
from bench.workers import Worker
from graphopt.check.tolerance import LIMITS
from graphopt.errors import GraphoptError

ISSUE, NUMBER = 20, 1
LIMIT = 120.0  # seconds for one test
QUICK_STEP = 25  # with --quick, every 25th test
LEAST = 0.99
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
SHORT = ("float16", "bfloat16")
_NOT_NUMERIC = {
    onnx.TensorProto.STRING, onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128, onnx.TensorProto.UNDEFINED
}  # fmt: skip
_PREVIEW = "preview"
LISTED = Path(__file__).parents[1] / "docs" / "whole.md"  # with the reasons
KEPT = Path(os.environ.get("GRAPHOPT_NODE_PROGRAMS", ""))  # a file for all outcomes, if named


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each test that is not whole and right."""
    with Worker() as worker:
        names = worker.call("bench.node_programs:numeric_names", limit=LIMIT).value[:: QUICK_STEP if quick else 1]
    outcomes = _outcomes(names)
    if KEPT.name:
        KEPT.write_text(json.dumps(outcomes, indent=1))
    kinds = Counter(outcome.partition(":")[0] for outcome in outcomes.values())
    sheet.table("node tests as programs", ("outcome", "tests"), sorted(kinds.items()))
    listed = LISTED.read_text()
    rest = [(name, f"`{name}`" in listed, one) for name, one in outcomes.items() if one != "whole"]
    sheet.table("node tests: not whole", ("test", "listed", "outcome"), rest)
    share = kinds["whole"] / len(outcomes)
    bad = sum(count for kind, count in kinds.items() if kind in ("wrong", "crash", "timeout", "fault"))
    figure = f"{kinds['whole']} of {len(outcomes)} ({100 * share:.1f} %); wrong, crashed or a fault: {bad}"
    wanted = f"{100 * LEAST:g} % whole, none wrong"
    return [Bar(ISSUE, NUMBER, "numeric node tests that compile whole", wanted, figure, share >= LEAST and not bad)]


def _outcomes(names: Sequence[str]) -> dict[str, str]:
    """The outcome of each, by as many processes as there are cores."""
    count = min(multiprocessing.cpu_count(), len(names))
    parts = [names[number::count] for number in range(count)]
    with ThreadPoolExecutor(count) as pool:
        found = [pair for pairs in pool.map(_in_one_process, parts) for pair in pairs]
    return dict(sorted(found))


def _in_one_process(names: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    with Worker() as worker:
        for name in names:
            reply = worker.call("bench.node_programs:outcome", name, limit=LIMIT)
            text = reply.value if reply.kind == "value" else f"{reply.kind}: {reply.text}"
            found.append((name, text.replace("\n", " ")[:400]))
    return found


def numeric_names() -> list[str]:
    """Inside the worker: the names of the tests that are counted."""
    from bench.node_tests import test_names

    return [name for name in test_names() if _is_numeric(node_test(name).model)]


def _is_numeric(model: onnx.ModelProto) -> bool:
    ends = [*model.graph.input, *model.graph.output]
    tensors = all(
        value.type.HasField("tensor_type") and value.type.tensor_type.elem_type not in _NOT_NUMERIC for value in ends
    )
    return tensors and not any(_PREVIEW in one.domain for one in model.opset_import)


def outcome(name: str) -> str:
    """Inside the worker: "whole", or what happens instead."""
    test = node_test(name)
    names = [value.name for value in test.model.graph.input]
    sets = [
        (dict(zip(names, map(value_of, inputs), strict=False)), list(map(value_of, outputs)))
        for inputs, outputs in test.data_sets
    ]
    try:
        program = graphopt.compile(test.model, feeds=[feed for feed, _ in sets], threads=1)
    except GraphoptError as error:
        return f"refused: {type(error).__name__}: {error}"
    except Exception as error:
        return f"fault: {type(error).__name__}: {error}"
    if program.fallback:
        return f"parts: {'; '.join(map(str, program.fallback))}"
    is_random = any(node.op_type in RANDOM or _trains(node) for node in test.model.graph.node)
    for feed, wanted in sets:
        for position, (one, other) in enumerate(zip(program.run(None, feed), wanted, strict=True)):
            why = _difference(one, other, test.rtol, test.atol, is_random=is_random)
            kind = np.asarray(one).dtype.name
            limit = LIMITS[kind] if kind in SHORT else 0.0
            if why and limit > test.rtol and not _difference(one, other, limit, test.atol, is_random=is_random):
                return f"short floats: output {position}: {why}"
            if why:
                return f"wrong: output {position}: {why}"
    return "whole"


def _trains(node: onnx.NodeProto) -> bool:
    """Whether a node is a Dropout with a training flag: its mask is of another generator than NumPy's."""
    return node.op_type == "Dropout" and len(node.input) > 2


def _difference(got: Any, wanted: Any, relative: float, absolute: float, *, is_random: bool) -> str:
    a, b = np.asarray(got), np.asarray(wanted)
    if a.shape != b.shape:
        return f"dims {a.shape} where {b.shape} are wanted"
    if a.dtype != b.dtype:
        return f"elements {a.dtype} where {b.dtype} are wanted"
    if is_random:
        return ""
    if a.dtype.kind in "biu":
        return "" if np.array_equal(a, b) else "other integers"
    wide = np.float64
    with np.errstate(all="ignore"):
        same = np.allclose(a.astype(wide), b.astype(wide), rtol=relative, atol=absolute, equal_nan=True)
    return "" if same else f"off by {np.nanmax(np.abs(a.astype(wide) - b.astype(wide))):.2g}"


if __name__ == "__main__":
    main(measure)

"""A small model with a name for every part of the memory page, and a record of any size."""

from __future__ import annotations

import numpy as np

from graphopt.flows.records.memory import BufferLine, MemoryRecord, StepLine
from graphopt.model.origin import SCOPES, STACK
from tests import support

# The order of the file holds `a` while `wide` is needed; the best order does not, and tiles need less again.
TEXT = """g (float[1,8,61] x) => (float[1,8,61] y, float[1,1,61] z) {
    a = Exp(x)
    wide = Concat<axis = 1>(x, x, x, x)
    b = Mul(wide, w)
    c = ReduceMax<axes = [1]>(b)
    d = Add(a, c)
    y = Sin(d)
    z = ReduceMax<axes = [1]>(d)
}"""


def exported() -> bytes:
    """The model with modules and lines of source as torch writes them, on all nodes but the first."""
    proto = support.model(TEXT, w=np.full((1, 32, 61), 0.5, np.float32))
    for number, node in enumerate(proto.graph.node):
        node.name = f"node_{number}"
        if number:
            node.metadata_props.add(key=SCOPES, value=str(["", "net", f"net.{number % 2}", f"call_{number}"]))
            frame = f'  File "net.py", line {10 + number}, in forward\n    y = f(x)\n'
            node.metadata_props.add(key=STACK, value=frame)
    return proto.SerializeToString()


def many(count: int) -> MemoryRecord:
    """A record as large as a model of `count` operators gives."""
    buffers = tuple(
        BufferLine(
            f"value_{n}",
            4096,
            4096,
            4096 * (n % 7),
            n,
            n + 6,
            "float32",
            (1, 1024),
            f"node_{n} (Add)",
            (),
            None,
            None,
            "activation",
            f"layer.{n // 100}",
            "",
        )
        for n in range(count)
    )
    plan = tuple(StepLine(f"node_{n}", "Add", 7 * 4096, 1000.0, False) for n in range(count))
    return MemoryRecord(
        "large.onnx", {}, "given", 7 * 4096, 7 * 4096, 0, 7 * 4096, 0, True, "greedy", 0, 0, 6, "node_6 (Add)",
        buffers[:7], (), buffers, plan, (), (), (), None, (), None, None, 0.0, (),
    )  # fmt: skip

"""Which branches of a model's Ifs the feeds lead to: the conditions become outputs of a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Watched:
    """A copy that gives the conditions of the main graph's Ifs after its own outputs."""

    model: ir.Model
    count: int


class Branches:
    """What the conditions were so far."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self._seen: list[set[bool]] = [set() for _ in range(count)]

    def note(self, conditions: Sequence[object]) -> None:
        """Add the conditions of one run."""
        for seen, value in zip(self._seen, conditions, strict=False):
            seen.add(bool(np.asarray(value).reshape(-1)[0]))

    @property
    def reached(self) -> tuple[int, int]:
        """Branches that were taken, and all."""
        return sum(len(seen) for seen in self._seen), 2 * self.count


def watched(model: ir.Model) -> Watched | None:
    """The copy; None where no If of the main graph has a condition that is computed or given."""
    if not any(node.op_type == "If" and node.domain == "" for node in model.graph):
        return None
    copy = model.clone()
    count = 0
    for node in tuple(copy.graph):
        if node.op_type != "If" or node.domain or node.inputs[0] is None or node.inputs[0].is_initializer():
            continue
        seen = ir.Node("", "Identity", [node.inputs[0]], num_outputs=1)
        seen.outputs[0].name = f"{node.outputs[0].name}/condition"
        seen.outputs[0].type, seen.outputs[0].shape = ir.TensorType(ir.DataType.BOOL), node.inputs[0].shape
        copy.graph.insert_before(node, seen)
        copy.graph.outputs.append(seen.outputs[0])
        count += 1
    return Watched(copy, count) if count else None

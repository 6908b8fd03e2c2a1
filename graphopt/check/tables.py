"""Tables that both models look things up in, compared bit for bit: feeds read only some of their rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})


def changed_table(first: ir.Model, second: ir.Model) -> str | None:
    """What is said of a table of equal name, type and dims whose rows differ; None where none does.

    A table is an initializer that nothing but lookups read. One that a rewrite made has a name of its own.
    """
    others = second.graph.initializers
    for name, value in first.graph.initializers.items():
        other = others.get(name)
        if other is None or not _is_table(value) or not _is_table(other):
            continue
        one, two = value.const_value, other.const_value
        if one is two or one is None or two is None or one.dtype != two.dtype or one.shape != two.shape:
            continue
        before, after = one.numpy(), two.numpy()
        if before.dtype.kind in "OSU":
            same = before == after
        else:
            if before.tobytes() == after.tobytes():
                continue
            same = (before == after) | ((before != before) & (after != after))
        rows = np.nonzero(~np.reshape(same, (len(before), -1)).all(axis=1))[0] if before.ndim else np.array([0])
        if rows.size:
            count = len(before) if before.ndim else 1
            return f"table '{name}' differs in {rows.size} of {count} rows, first in row {rows[0]}"
    return None


def _is_table(value: ir.Value) -> bool:
    uses = [(use.node, use.idx) for use in value.uses()]
    looked_up = all(node.op_type in LOOKUPS and index == 0 and node.domain == "" for node, index in uses)
    return bool(uses) and looked_up and not value.is_graph_output() and not value.is_graph_input()

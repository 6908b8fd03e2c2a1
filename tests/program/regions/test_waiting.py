"""Where values are read last, by what shows their parts."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.program.regions.waiting import last_read, reading
from tests import support


def _model(levels: int) -> tuple[ir.Model, dict[ir.Node, int]]:
    """Halves of a value are joined again, and halves of that, and so on; a last node reads the last one."""
    halves = [
        f"a{level}, b{level} = Split<axis = 1, num_outputs = 2>(v{level}) "
        f"v{level + 1} = Concat<axis = 1>(b{level}, a{level})"
        for level in range(levels)
    ]
    text = f"g (float[2,4] x) => (float[2,4] y) {{ v0 = Relu(x) {' '.join(halves)} y = Neg(v{levels}) }}"
    model = ir.from_proto(support.model(text, 20))
    return model, {node: number for number, node in enumerate(model.graph)}


def test_a_value_is_read_where_its_parts_are() -> None:
    """As many ways lead to the last node as there are subsets of the levels: each value is asked once."""
    model, place = _model(60)
    first, last = next(iter(model.graph)), len(place) - 1
    assert last_read(first.outputs[0], place) == last
    assert reading(first.outputs[0], place) == (1, last)
    assert reading(model.graph.inputs[0], place) == (0, 0)


def test_outputs_of_the_graph_are_read_behind_it() -> None:
    model, place = _model(1)
    assert last_read(model.graph.outputs[0], place) == len(place)

"""Sketches: which nodes are drawn around a change, how they hang together, before it and after."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.rewrite.journal import SKETCHES, Journal
from graphopt.rewrite.record import Sketch
from graphopt.rewrite.sketch import CHANGED, NEIGHBOURS, SCANNED, draw, surroundings
from tests import support


def graph(text: str) -> ir.Graph:
    return ir.from_proto(support.model(text, w=np.ones(4, np.float32))).graph


def nodes_of(drawn: ir.Graph, *names: str) -> list[ir.Node]:
    found = {str(output.name): node for node in drawn for output in node.outputs}
    return [found[name] for name in names]


def told(sketch: Sketch) -> list[str]:
    """Dots, changed ones with a star, then arrows, then how many neighbours are left out."""
    dots = [f"{dot.op_type} {dot.name}{'*' if dot.changed else ''}" for dot in sketch.dots]
    arrows = sorted(f"{sketch.dots[start].name}>{sketch.dots[end].name}" for start, end in sketch.arrows)
    return [*dots, *arrows, *([f"{sketch.left_out} more"] if sketch.left_out else [])]


# The graph, the nodes that change, and the sketch before the change.
BEFORE: list[tuple[str, str, list[str]]] = [
    (
        "g (float[4] x) => (float[4] y) { far = Neg(x) a = Exp(far) b = Abs(a) c = Sin(b) y = Cos(c) }", "b",
        ["Abs b*", "Exp a", "Sin c", "a>b", "b>c"],
    ),
    (  # leaves are drawn at what changes, and only there; the same one once
        "g (float[4] x) => (float[4] y) { a = Add(x, w) b = Mul(a, x) y = Add(b, w) }", "a b",
        ["Add a*", "Mul b*", "Add y", "input x", "constant w", "a>b", "b>y", "w>a", "x>a", "x>b"],
    ),
    (  # what is above and reads the change as well is drawn above, once
        "g (float[4] x) => (float[4] y, float[4] z) { a = Neg(x) b = Abs(a) y = Add(a, b) z = Exp(b) }", "b",
        ["Abs b*", "Neg a", "Add y", "Exp z", "a>b", "a>y", "b>y", "b>z"],
    ),
    (  # an output of the graph is a dot of its own
        "g (float[4] x) => (float[4] a, float[4] y) { a = Neg(x) y = Abs(a) }", "a",
        ["Neg a*", "Abs y", "input x", "output a", "a>a", "a>y", "x>a"],
    ),
    (  # a branch reads what its node needs
        """g (float[4] x, bool c) => (float[4] y) { a = Neg(x) b = Exp(x) y = If(c) <
            then_branch = t () => (float[4] u) { u = Add(a, b) },
            else_branch = e () => (float[4] v) { v = Abs(a) }> }""",
        "b y", ["Exp b*", "If y*", "Add u", "input x", "input c", "output y", "b>u", "b>y", "c>y", "x>b", "y>y"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "names", "expected"), BEFORE)
def test_what_stands_around_a_change(text: str, names: str, expected: list[str]) -> None:
    assert told(surroundings(nodes_of(graph(text), *names.split())).before) == expected


def test_the_same_place_after_a_change() -> None:
    drawn = graph("g (float[4] x) => (float[4] y) { a = Exp(x) b = Abs(a) c = Sin(b) d = Tan(c) y = Cos(d) }")
    (above, first, second) = nodes_of(drawn, "a", "b", "c")
    around = surroundings([second, first])
    assert told(around.before) == ["Sin c*", "Abs b*", "Exp a", "Tan d", "a>b", "b>c", "c>d"]
    new = ir.Node("", "Tanh", [above.outputs[0]], name="new", num_outputs=1)
    new.outputs[0].name = "n"
    drawn.insert_before(second, new)
    second.outputs[0].replace_all_uses_with(new.outputs[0])
    drawn.remove([second, first], safe=True)
    assert told(draw(around, [new])) == ["Tanh new*", "Exp a", "Tan d", "a>new", "new>d"]
    elsewhere = ir.Node("", "Sinh", [above.outputs[0]], num_outputs=1)
    assert told(draw(around, [new, elsewhere])) == told(draw(around, [new])), "what is in no graph is not drawn"


def test_a_change_that_leaves_only_a_constant_or_an_older_value() -> None:
    drawn = graph("g (float[4] x) => (float[4] y) { a = Exp(x) b = Abs(a) c = Neg(w) d = Add(b, c) y = Cos(d) }")
    (above, gone, folded, reader) = nodes_of(drawn, "a", "b", "c", "d")
    around = surroundings([gone])
    gone.outputs[0].replace_all_uses_with(above.outputs[0])
    drawn.remove(gone, safe=True)
    assert told(draw(around, [])) == ["Exp a", "Add d", "a>d"]
    around = surroundings([folded])
    folded.outputs[0].replace_all_uses_with(drawn.initializers["w"])
    drawn.remove(folded, safe=True)
    assert told(draw(around, [])) == ["Add d", "constant w*", "w>d"]
    around = surroundings([reader])
    drawn.outputs[0].producer().replace_input_with(0, above.outputs[0])  # type: ignore[union-attr]
    drawn.remove(reader, safe=True)
    assert told(draw(around, [])) == ["Exp a", "Cos y", "a>y"], "a neighbour that nothing joins any more is left out"


def wide(readers: int, reading: int) -> ir.Graph:
    """One value that many read, made of one that reads many."""
    above = " ".join(f"u{number} = Elu<alpha = {number}.5>(x)" for number in range(reading))
    below = " ".join(f"v{number} = Elu<alpha = {number}.5>(s)" for number in range(readers))
    outputs = ", ".join(f"float[4] v{number}" for number in range(readers))
    read = ", ".join(f"u{number}" for number in range(reading))
    return graph(f"g (float[4] x) => ({outputs}) {{ {above} s = Sum({read}) {below} }}")


@pytest.mark.parametrize(("readers", "reading"), [(NEIGHBOURS, NEIGHBOURS), (NEIGHBOURS + 1, NEIGHBOURS + 2)])
def test_of_many_neighbours_some_are_drawn_and_all_are_counted(readers: int, reading: int) -> None:
    (change,) = nodes_of(wide(readers, reading), "s")
    before = surroundings([change]).before
    kinds = [dot.op_type for dot in before.dots]
    assert kinds.count("Elu") == 2 * NEIGHBOURS and before.left_out == readers + reading - 2 * NEIGHBOURS
    assert len(before.arrows) == 2 * NEIGHBOURS


def test_of_very_many_readers_only_some_are_looked_at() -> None:
    (change,) = nodes_of(wide(SCANNED + 9, 1), "s")
    assert surroundings([change]).before.left_out == SCANNED - NEIGHBOURS


def test_of_a_large_change_only_some_nodes_are_drawn() -> None:
    count = CHANGED + 3
    lines = " ".join(f"v{number + 1} = Neg(v{number})" for number in range(count))
    drawn = graph(f"g (float[4] v0) => (float[4] y) {{ {lines} y = Exp(v{count}) }}")
    before = surroundings(nodes_of(drawn, *(f"v{number + 1}" for number in range(count)))).before
    assert sum(dot.changed for dot in before.dots if dot.op_type == "Neg") == CHANGED and before.left_out == 3


def test_only_the_first_of_each_rule_are_drawn_and_records_are_settled_in_turn() -> None:
    drawn = graph("g (float[4] x) => (float[4] y) { a = Exp(x) b = Abs(a) y = Cos(b) }")
    nodes = list(drawn)
    journal = Journal(sketches=True)
    for number in range(SKETCHES + 2):
        journal.write("step", "often" if number < SKETCHES + 1 else "once", f"s{number}", nodes[:1], nodes[1:2], None)
    journal.settle()
    journal.settle()
    assert [one.sketches is not None for one in journal.log] == [True] * SKETCHES + [False, True]
    assert {one.after for one in journal.log} == {("Abs 'b'",)}
    journal.write("step", "often", nodes[0].outputs[0], ["a text"], [nodes[1]], None)
    nodes[1].name = "named later"
    journal.settle()
    assert journal.log[-1].after == ("Abs 'named later'",) and journal.log[-1].before == ("a text",)


def test_a_change_without_nodes_is_drawn_at_its_site() -> None:
    drawn = graph("g (float[4] x) => (float[4] y) { a = Exp(x) b = Abs(x) y = Add(a, b) }")
    journal = Journal(sketches=True)
    (made, *_) = nodes_of(drawn, "a")
    journal.write("step", "at-a-value", made.outputs[0], (), (), None)
    journal.write("step", "at-an-input", drawn.inputs[0], (), (), None)
    journal.write("step", "by-name", "a", (), (), None)
    new = ir.Node("", "Neg", [drawn.inputs[0]], name="new", num_outputs=1)
    drawn.append(new)
    journal.inserted(new)
    journal.settle()
    before = [[dot.name for dot in one.sketches[0].dots if dot.changed] for one in journal.log if one.sketches]
    assert before == [["a"], ["a", "b"], []]
    assert [dot.name for dot in journal.log[2].sketches[1].dots] == ["new", "x"], "what was put in is drawn"  # type: ignore[index]

"""The log of a run: new nodes by their names, reasons where a rule gives one, sketches only where asked for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.rewrite.provenance import NAMED, PROVENANCE, trace
from graphopt.rewrite.record import Dot, Rewrite
from tests import support

TEXT = """g (float[n,4] x) => (float[n,3] y) {
    a = Identity(x) m = MatMul(a, w) s = Add(m, b) r = Relu(s) y = Neg(r)
}"""


def _log(proto: onnx.ModelProto, details: bool = True) -> dict[str, Rewrite]:
    """The first rewrite of each rule."""
    found: dict[str, Rewrite] = {}
    for rewrite in graphopt.optimize(proto, details=details, level=3).rewrites:
        found.setdefault(rewrite.rule, rewrite)
    return found


def _gemm() -> onnx.ModelProto:
    return support.model(TEXT, w=np.ones((4, 3), np.float32), b=np.ones(3, np.float32))


def test_new_nodes_have_their_names_in_the_log() -> None:
    fused = _log(_gemm(), details=False)["matmul-add-to-gemm"]
    assert fused.before == ("Add 's'", "MatMul 'm'")
    assert fused.after == ("Gemm 's/Gemm'",)


def test_nothing_is_drawn_unless_asked_for() -> None:
    result = graphopt.optimize(_gemm())
    assert result.rewrites and all(rewrite.sketches is None for rewrite in result.rewrites)
    assert result.flops is None


def test_a_sketch_shows_the_changed_nodes_and_their_neighbors() -> None:
    sketches = _log(_gemm())["matmul-add-to-gemm"].sketches
    assert sketches is not None
    before, after = sketches
    assert set(before.dots) == {
        Dot("MatMul", "m", True), Dot("Add", "s", True), Dot("Relu", "r", False),
        Dot("input", "x", False), Dot("constant", "w", False), Dot("constant", "b", False),
    }  # fmt: skip
    assert {dot.op_type for dot in after.dots if dot.changed} == {"Gemm"}
    names = {dot.name: place for place, dot in enumerate(after.dots)}
    assert (names["s/Gemm"], names["r"]) in after.arrows
    assert (names["x"], names["s/Gemm"]) in after.arrows


def test_what_is_folded_is_drawn_as_a_constant() -> None:
    proto = support.model(
        "g (float[3] x) => (float[3] y) { two = Add(one, one) y = Mul(x, two) }", one=np.full(3, 1.5, np.float32)
    )
    folded = _log(proto)["fold-constants"]
    assert folded.reason == "12 bytes are written"
    assert folded.sketches is not None
    assert [dot.op_type for dot in folded.sketches[1].dots if dot.changed] == ["constant"]
    assert [dot.op_type for dot in folded.sketches[1].dots if not dot.changed] == ["Mul"]


def test_a_merged_node_names_its_twin() -> None:
    proto = support.model("g (float[n] x) => (float[n] y) { a = Relu(x) b = Relu(x) c = Neg(b) y = Sub(a, c) }")
    merged = _log(proto)["merge-common-subexpressions"]
    assert (merged.before, merged.after) == (("Relu 'b'",), ("Relu 'a'",))
    assert merged.reason == "Relu 'a' computes the same"


def test_only_the_first_rewrites_of_a_rule_are_drawn() -> None:
    body = " ".join(f"v{n + 1} = Identity(v{n})" for n in range(10))
    result = graphopt.optimize(
        support.model(f"g (float[n] v0) => (float[n] y) {{ {body} y = Relu(v10) }}"), details=True
    )
    drawn = Counter(rewrite.rule for rewrite in result.rewrites if rewrite.sketches is not None)
    assert drawn == {"identity": 3}


def test_many_readers_are_counted_and_not_drawn() -> None:
    body = (
        " ".join(f"r{n} = Relu(a)" for n in range(1))
        + " "
        + " ".join(f"s{n} = Elu<alpha = {n + 1}.0>(a)" for n in range(20))
    )
    total = " ".join(f"t{n + 1} = Add(t{n}, s{n})" for n in range(20))
    proto = support.model(
        f"g (float[n] x) => (float[n] y) {{ a = Identity(x) {body} t0 = Neg(r0) {total} y = Relu(t20) }}"
    )
    sketches = _log(proto)["identity"].sketches
    assert sketches is not None
    assert sketches[0].left_out == 16
    assert len(sketches[0].dots) == 1 + 1 + 5  # the Identity, the input, five readers


@pytest.mark.parametrize("details", [False, True])
def test_details_change_nothing_else(details: bool) -> None:
    plain, drawn = graphopt.optimize(_gemm()), graphopt.optimize(_gemm(), details=details)
    assert plain.to_proto().SerializeToString(deterministic=True) == drawn.to_proto().SerializeToString(
        deterministic=True
    )
    assert (drawn.flops is not None) is details


def test_a_node_that_stands_for_very_many_names_the_first() -> None:
    nodes = [ir.Node("", "Relu", [], name=f"r{number}", num_outputs=1) for number in range(NAMED + 5)]
    made = ir.Node("", "Relu", [], num_outputs=1)
    trace("rolled", made, nodes)
    assert made.metadata_props[PROVENANCE] == f"rolled({', '.join(f'r{number}' for number in range(NAMED))}, 5 more)"

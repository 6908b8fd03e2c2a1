"""A result is never larger than its input: what is left out for that, in which order, and that a second run agrees."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

import graphopt
from graphopt.model.census import file_bytes
from graphopt.rewrite.lighten import lighten
from graphopt.rewrite.provenance import PROVENANCE
from tests import support

SAID = "g (float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) y = Relu(b) }"


def _with_lines(text: str) -> ir.Model:
    model = ir.from_proto(support.model(text))
    for node in model.graph:
        node.metadata_props[PROVENANCE] = "some-rule(Neg, Neg)"
    return model


def test_what_is_small_enough_keeps_everything() -> None:
    model = _with_lines(SAID)
    assert lighten(model, ir.from_proto(support.model(SAID)), file_bytes(model))
    assert all(PROVENANCE in node.metadata_props for node in model.graph)


def test_lines_about_nodes_go_first_and_alone() -> None:
    original = ir.from_proto(support.model(SAID))
    model = _with_lines(SAID.replace("b", "long_name"))
    most = file_bytes(model) - 1
    assert lighten(model, original, most)
    assert not any(PROVENANCE in node.metadata_props for node in model.graph)
    assert "long_name" in {output.name for node in model.graph for output in node.outputs}


def test_names_stay_long_where_the_lines_were_enough() -> None:
    original, text = ir.from_proto(support.model(SAID)), SAID.replace("b", "long_name")
    for less, kept in ((0, True), (1, False)):
        model = _with_lines(text)
        assert lighten(model, original, file_bytes(ir.from_proto(support.model(text))) - less)
        assert ("long_name" in {output.name for node in model.graph for output in node.outputs}) is kept


def test_what_the_original_says_of_its_nodes_stays() -> None:
    model = _with_lines(SAID)
    next(iter(model.graph)).metadata_props[PROVENANCE] += "; another-rule(Neg)"
    lighten(model, _with_lines(SAID), 1)
    assert {node.metadata_props[PROVENANCE] for node in model.graph} == {"some-rule(Neg, Neg)"}


def test_new_names_are_shortened_then_and_old_ones_are_not() -> None:
    original = ir.from_proto(support.model("g (float[2] x) => (float[2] y) { kept_name = Neg(x) y = Relu(kept_name) }"))
    text = """g (float[2] x) => (float[2] y) {
        kept_name = Neg(x) other = Constant<value_float=2.0>() made_name = Mul(kept_name, other) y = Relu(made_name)
    }"""
    model = ir.from_proto(support.model(text))
    before = ir.to_proto(model)
    assert not lighten(model, original, 1)
    names = [output.name for node in model.graph for output in node.outputs]
    assert names == ["kept_name", "0", "1", "y"]
    support.assert_equal(before, ir.to_proto(model))


def test_a_name_in_a_branch_follows_its_value() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        a_long_name = Neg(x)
        y = If(c) <then_branch = t () => (float[2] p) { inner_name = Abs(a_long_name) p = Relu(inner_name) },
                   else_branch = e () => (float[2] q) { q = Relu(a_long_name) }>
    }"""
    model = ir.from_proto(support.model(text))
    lighten(model, ir.from_proto(support.model(SAID)), 1)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert "a_long_name" not in str(proto)
    support.assert_equal(support.model(text), proto)


GROWING = """g (float[n,500] x) => (float[n,500] y) {
    first = Constant<value_int=0>() last = Constant<value_int=500>() step = Constant<value_int=1>()
    places = Range(first, last, step) numbers = Cast<to=1>(places) y = Add(x, numbers)
}"""


def test_nothing_is_written_out_that_makes_the_file_larger() -> None:
    proto = support.model(GROWING)
    result = graphopt.optimize(proto)
    assert support.op_types(result.to_proto()) == ["Range", "Cast", "Add"]
    assert result.after.bytes <= len(proto.SerializeToString())


def test_who_asks_for_more_may_get_a_larger_file() -> None:
    result = graphopt.optimize(support.model(GROWING), level=3)
    assert support.op_types(result.to_proto()) == ["Add"]
    assert result.after.bytes > len(support.model(GROWING).SerializeToString())


def test_room_that_other_rewrites_leave_is_used() -> None:
    """A table of 12 kB is beyond the usual budget, and costs the file nothing where as much was never read."""
    alone = support.model(GROWING.replace("500", "3000"))
    assert support.op_types(graphopt.optimize(alone).to_proto()) == ["Range", "Cast", "Add"]
    beside = support.model(GROWING.replace("500", "3000"), unread=np.zeros(3000, np.float32))
    result = graphopt.optimize(beside)
    assert support.op_types(result.to_proto()) == ["Add"]
    assert result.verification.passed
    assert result.after.bytes <= result.before.bytes


def test_a_second_run_finds_nothing() -> None:
    first = graphopt.optimize(support.model(GROWING))
    second = graphopt.optimize(first.to_proto())
    assert second.rewrites == ()
    assert second.to_proto() == first.to_proto()

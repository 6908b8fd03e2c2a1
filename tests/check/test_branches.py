"""Branches that feeds take are counted wherever the If stands."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from graphopt.check.branches import Branches, watched
from graphopt.check.runner import Workplace
from graphopt.model.load import load
from tests import support

CHOICE = """If(c) <then_branch = t () => (float[2] u) { u = Neg(s) },
                   else_branch = e () => (float[2] v) { v = Abs(s) }>"""
IN_BRANCHES = """g (float[2] x, bool a, bool b) => (float[2] y) {
    y = If(a) <then_branch = t1 () => (float[2] u1) {
                   u1 = If(b) <then_branch = t2 () => (float[2] u2) { u2 = Neg(x) },
                               else_branch = e2 () => (float[2] v2) { v2 = Abs(x) }> },
               else_branch = e1 () => (float[2] v1) { v1 = Exp(x) }> }"""
IN_LOOP = f"""g (float[2] x, int64 n) => (float[2] y) <int64 one = {{1}}> {{
    y = Loop(n, , x) <body = b (int64 i, bool k, float[2] s) => (bool d, float[2] w) {{
        d = Identity(k) c = Greater(i, one) w = {CHOICE} }}> }}"""
IN_SCAN = f"""g (float[m,2] x) => (float[m,2] y) <float zero = {{0.0}}> {{
    y = Scan <num_scan_inputs = 1, body = b (float[2] s) => (float[2] w) {{
        r = ReduceSum <keepdims = 0> (s) c = Greater(r, zero) w = {CHOICE} }}> (x) }}"""
IN_LOOP_IN_BRANCH = f"""g (float[2] x, bool a, int64 n) => (float[2] y) <int64 one = {{1}}> {{
    y = If(a) <then_branch = t1 () => (float[2] u1) {{
                   u1 = Loop(n, , x) <body = b (int64 i, bool k, float[2] s) => (bool d, float[2] w) {{
                        d = Identity(k) c = Greater(i, one) w = {CHOICE} }}> }},
               else_branch = e1 () => (float[2] v1) {{ v1 = Exp(x) }}> }}"""
FUNCTION = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
    g (float[2] x, bool a, bool b) => (float[2] y) {{ p = own.choose(x, a) y = own.choose(p, b) }}
    <domain: "own", opset_import: ["" : 17]> choose (s, c) => (w) {{ w = {CHOICE} }}""")

x = np.array([1, -2], np.float32)


def _reached(model: onnx.ModelProto, *feeds: dict[str, object]) -> tuple[int, int]:
    """Branches that these feeds take, and all; the model's own outputs are as before."""
    original = load(model)
    copy = watched(original)
    assert copy is not None
    branches = Branches(copy.ifs)
    with Workplace() as workplace:
        plain, more = workplace.runner(original, True), workplace.runner(copy.model, True)
        for feed in feeds:
            given = {name: np.asarray(value) for name, value in feed.items()}
            own, *flags = more.run(given)
            assert np.array_equal(np.asarray(own), np.asarray(plain.run(given)[0]))
            branches.note(flags)
    return branches.reached


@pytest.mark.parametrize(
    "conditions, taken",
    [
        ([(False, True)], 1),
        ([(True, True)], 2),
        ([(False, False), (True, False)], 3),
        ([(True, False), (True, True)], 3),
    ],
)
def test_an_if_in_a_branch_counts_only_where_that_branch_is_taken(
    conditions: list[tuple[bool, bool]], taken: int
) -> None:
    feeds: list[dict[str, object]] = [{"x": x, "a": a, "b": b} for a, b in conditions]
    assert _reached(support.model(IN_BRANCHES), *feeds) == (taken, 4)


@pytest.mark.parametrize("trips, taken", [(0, 0), (2, 1), (3, 2)])
def test_an_if_in_a_loop_counts_for_every_trip(trips: int, taken: int) -> None:
    assert _reached(support.model(IN_LOOP), {"x": x, "n": trips}) == (taken, 2)


def test_an_if_in_a_scan_counts_for_every_step() -> None:
    assert _reached(support.model(IN_SCAN), {"x": np.ones((3, 2), np.float32)}) == (1, 2)
    assert _reached(support.model(IN_SCAN), {"x": np.array([[1, 1], [-1, -1]], np.float32)}) == (2, 2)


def test_an_if_in_a_loop_in_a_branch() -> None:
    model = support.model(IN_LOOP_IN_BRANCH)
    assert _reached(model, {"x": x, "a": False, "n": 3}) == (1, 4)
    assert _reached(model, {"x": x, "a": True, "n": 3}) == (3, 4)


def test_an_if_of_a_function_is_one_for_all_its_callers() -> None:
    assert _reached(FUNCTION, {"x": x, "a": True, "b": True}) == (1, 2)
    assert _reached(FUNCTION, {"x": x, "a": True, "b": False}) == (2, 2)


def test_a_model_without_conditions_is_not_watched() -> None:
    assert watched(load(support.model("g (float[2] x) => (float[2] y) { y = Neg(x) }"))) is None
    constant = support.model(f"g (float[2] s) => (float[2] y) <bool c = {{1}}> {{ y = {CHOICE} }}")
    assert watched(load(constant)) is None


def test_the_original_is_left_as_it_is() -> None:
    model = load(support.model(IN_LOOP))
    before = ir.to_proto(model).SerializeToString()
    assert watched(model) is not None
    assert ir.to_proto(model).SerializeToString() == before

"""Regions and their steps, told out in full: ranges that one can follow by eye."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.memory.tiling.axes import axes_from
from graphopt.memory.tiling.region import Cut, Join, Piece, Run, Step, members_of, region_of, steps_of
from graphopt.model.facts import Facts
from graphopt.model.load import load
from tests import support

KERNEL = np.ones((3, 3, 3, 3), np.float32)
# Rows of b reach one row further than those of y, those of a one further than those of b.
RESIDUAL = """g (float[1,3,12,5] x) => (float[1,3,12,5] y) {
    a = Relu(x) b = Conv<pads = [1, 1, 1, 1]>(a, w) y = Add(a, b)
}"""


def piece_text(piece: Piece | None) -> str:
    if piece is None:
        return "-"
    return f"{piece.value.name}" + ("" if piece.axis is None else f"[{piece.axis}: {piece.low}-{piece.high}]")


def step_text(step: Step) -> str:
    match step:
        case Cut():
            return f"{piece_text(step.source)} => {piece_text(step.made)}" + (f" {step.copied}" if step.copied else "")
        case Join():
            return f"{' + '.join(map(piece_text, step.pieces))} => {piece_text(step.whole)}"
        case Run():
            made = ", ".join(map(piece_text, step.outputs))
            return f"{step.node.op_type} {', '.join(map(piece_text, step.inputs))} => {made} ({step.share:.3f})"


def steps_text(text: str, axis: int, count: int, *, keep: bool = False, **weights: np.ndarray) -> list[str] | None:
    """All nodes as one region along `axis` of the last one's result; None where there are no such steps."""
    model = load(support.model(text, **weights))
    facts, members = Facts(model), list(model.graph)
    region = region_of(facts, members, axes_from(facts, members[-1].outputs[0], axis, members))
    assert region is not None
    steps = steps_of(facts, region, count, keep=keep)
    return None if steps is None else [step_text(step) for step in steps]


def test_a_halo_is_computed_by_each_tile_that_needs_it() -> None:
    assert steps_text(RESIDUAL, 2, 3, w=KERNEL) == [
        "x => x[2: 0-5]",
        "Relu x[2: 0-5] => a[2: 0-5] (0.417)",
        "Conv a[2: 0-5], w => b[2: 0-4] (0.333)",
        "a[2: 0-5] => a[2: 0-4]",
        "Add a[2: 0-4], b[2: 0-4] => y[2: 0-4] (0.333)",
        "x => x[2: 3-9]",
        "Relu x[2: 3-9] => a[2: 3-9] (0.500)",
        "Conv a[2: 3-9], w => b[2: 4-8] (0.333)",
        "a[2: 3-9] => a[2: 4-8]",
        "Add a[2: 4-8], b[2: 4-8] => y[2: 4-8] (0.333)",
        "x => x[2: 7-12]",
        "Relu x[2: 7-12] => a[2: 7-12] (0.417)",
        "Conv a[2: 7-12], w => b[2: 8-12] (0.333)",
        "a[2: 7-12] => a[2: 8-12]",
        "Add a[2: 8-12], b[2: 8-12] => y[2: 8-12] (0.333)",
        "y[2: 0-4] + y[2: 4-8] + y[2: 8-12] => y",
    ]


def test_a_halo_is_kept_for_the_next_tile() -> None:
    """No row is computed twice; what is kept is copied once its tile needs it no more."""
    assert steps_text(RESIDUAL, 2, 3, keep=True, w=KERNEL) == [
        "x => x[2: 0-5]",
        "Relu x[2: 0-5] => a[2: 0-5] (0.417)",
        "Conv a[2: 0-5], w => b[2: 0-4] (0.333)",
        "a[2: 0-5] => a[2: 0-4]",
        "Add a[2: 0-4], b[2: 0-4] => y[2: 0-4] (0.333)",
        "a[2: 0-5] => a[2: 3-5] kept",
        "x => x[2: 5-9]",
        "Relu x[2: 5-9] => a[2: 5-9] (0.333)",
        "a[2: 3-5] + a[2: 5-9] => a[2: 3-9]",
        "Conv a[2: 3-9], w => b[2: 4-8] (0.333)",
        "a[2: 3-9] => a[2: 4-8]",
        "Add a[2: 4-8], b[2: 4-8] => y[2: 4-8] (0.333)",
        "a[2: 3-9] => a[2: 7-9] kept",
        "x => x[2: 9-12]",
        "Relu x[2: 9-12] => a[2: 9-12] (0.250)",
        "a[2: 7-9] + a[2: 9-12] => a[2: 7-12]",
        "Conv a[2: 7-12], w => b[2: 8-12] (0.333)",
        "a[2: 7-12] => a[2: 8-12]",
        "Add a[2: 8-12], b[2: 8-12] => y[2: 8-12] (0.333)",
        "y[2: 0-4] + y[2: 4-8] + y[2: 8-12] => y",
    ]


def test_nothing_is_kept_where_tiles_have_nothing_in_common() -> None:
    text = "g (float[1,3,12,5] x) => (float[1,3,12,5] y) { a = Relu(x) y = Exp(a) }"
    assert steps_text(text, 2, 3, keep=True) == steps_text(text, 2, 3)


def test_a_value_that_is_needed_outside_too_is_cut_to_its_own_rows_and_joined() -> None:
    told = steps_text(RESIDUAL.replace("y)", "a, float[1,3,12,5] y)", 1), 2, 2, w=KERNEL)
    assert told is not None
    assert [line for line in told if " + " in line] == ["a[2: 0-6] + a[2: 6-12] => a", "y[2: 0-6] + y[2: 6-12] => y"]
    assert told.count("a[2: 0-7] => a[2: 0-6] joined") == 1, "a piece that is there is not cut again"


def test_lengths_that_do_not_divide_differ_by_one() -> None:
    assert steps_text("g (float[7,2] x) => (float[7,2] y) { y = Exp(x) }", 0, 3) == [
        "x => x[0: 0-2]", "Exp x[0: 0-2] => y[0: 0-2] (0.286)",
        "x => x[0: 2-4]", "Exp x[0: 2-4] => y[0: 2-4] (0.286)",
        "x => x[0: 4-7]", "Exp x[0: 4-7] => y[0: 4-7] (0.429)",
        "y[0: 0-2] + y[0: 2-4] + y[0: 4-7] => y",
    ]  # fmt: skip


def test_there_are_as_many_tiles_as_positions_and_no_more() -> None:
    text = "g (float[3,4] x) => (float[3,4] y) { y = Exp(x) }"
    assert steps_text(text, 0, 3) is not None and steps_text(text, 0, 4) is None


def test_an_operand_that_is_whole_in_every_tile_is_not_cut() -> None:
    """Rows of a product need all of the second operand; a row that is repeated is read as it is."""
    text = "g (float[4,6] a, float[6,5] b, float[1,5] r) => (float[4,5] y) { p = MatMul(a, b) y = Add(p, r) }"
    told = steps_text(text, 0, 2)
    assert told is not None and told[1:3] == [
        "MatMul a[0: 0-2], b => p[0: 0-2] (0.500)", "Add p[0: 0-2], r => y[0: 0-2] (0.500)",
    ]  # fmt: skip


def test_a_window_that_reaches_over_all_rows_reads_the_whole() -> None:
    """Each of two tiles of a kernel over five of four rows sees all of them."""
    told = steps_text(
        "g (float[1,1,4,1] x) => (float[1,1,2,1] y) { y = Conv<pads = [1, 0, 1, 0]>(x, w) }", 2, 2,
        w=np.ones((1, 1, 5, 1), np.float32),
    )  # fmt: skip
    assert told is not None and told[0].startswith("Conv x, w => y[2: 0-1]")


def test_sizes_said_by_an_operand_are_written_for_the_tile() -> None:
    told = steps_text("g (float[1,8,6] x) => (float[1,8,2,3] y) { y = Reshape(x, s) }", 1, 2, s=np.array([0, 0, 2, -1]))
    assert told is not None and told[:2] == ["x => x[1: 0-4]", "Reshape x[1: 0-4], - => y[1: 0-4] (0.500)"]


def test_both_results_of_a_split_are_made_by_the_same_run() -> None:
    told = steps_text(
        "g (float[4,6] x) => (float[2,6] y) { p, q = Split<axis = 0>(x, n) y = Sub(p, q) }", 1, 2, n=np.array([2, 2])
    )
    assert told is not None and told[1] == "Split x[1: 0-3], n => p[1: 0-3], q[1: 0-3] (0.500)"


def axes(text: str, seed: str, axis: int, leave: str = "", **weights: np.ndarray) -> dict[str, int]:
    """The axes by value that are tied to `axis` of `seed`; the node that makes `leave` takes no part."""
    model = load(support.model(text, **weights))
    values = {value.name: value for node in model.graph for value in node.outputs}
    among = [node for node in model.graph if node.outputs[0].name != leave]
    return {str(value.name): at for value, at in axes_from(Facts(model), values[seed], axis, among).items()}


MOVED = """g (float[4,6] x) => (float[6,4] y, float[4] z) {
    a = Exp(x) t = Transpose(a) y = Neg(t) z = ReduceSum<keepdims = 0>(a, last)
}"""


@pytest.mark.parametrize(
    ("seed", "axis", "leave", "expected"),
    [
        ("a", 0, "", {"x": 0, "a": 0, "t": 1, "y": 1, "z": 0}),
        ("a", 1, "", {"x": 1, "a": 1, "t": 0, "y": 0}),  # which z has no more
        ("y", 0, "", {"x": 1, "a": 1, "t": 0, "y": 0}),
        ("y", 1, "a", {"a": 0, "t": 1, "y": 1, "z": 0}),  # nothing is known of what makes a
        ("a", 0, "t", {"x": 0, "a": 0, "z": 0}),
        ("z", 0, "", {"x": 0, "a": 0, "t": 1, "y": 1, "z": 0}),
    ],
)
def test_an_axis_is_followed_along_operands_and_results(
    seed: str, axis: int, leave: str, expected: dict[str, int]
) -> None:
    assert axes(MOVED, seed, axis, leave, last=np.array([1])) == expected


def test_an_axis_of_one_position_ties_nothing() -> None:
    text = "g (float[2,1] x) => (float[2,1] y) { a = Exp(x) y = Neg(a) }"
    assert axes(text, "a", 1) == {"a": 1} and axes(text, "a", 0) == {"a": 0, "x": 0, "y": 0}


def region(text: str, chosen: dict[str, int], **weights: np.ndarray) -> list[str] | None:
    """The exits of a region of the nodes that make these values, tiled along these axes."""
    model = load(support.model(text, **weights))
    members = [node for node in model.graph if node.outputs[0].name in chosen]
    tied: dict[ir.Value, int] = {}
    for node in members:
        tied |= {value: chosen[str(value.name)] for value in node.outputs if value.name in chosen}
    found = region_of(Facts(model), members, tied)
    return None if found is None else [str(value.name) for value in found.exits]


def test_exits_are_what_is_returned_or_read_outside() -> None:
    assert region(MOVED, {"a": 0, "t": 1, "y": 1}, last=np.array([1])) == ["a", "y"], "z reads a"
    assert region(MOVED, {"a": 0, "t": 1, "y": 1, "z": 0}, last=np.array([1])) == ["y", "z"]
    assert region(MOVED, {"a": 0}, last=np.array([1])) == ["a"]


@pytest.mark.parametrize("chosen", [
    {"a": 0, "t": 0},  # rows of a are columns of t
    {"a": 0, "z": 5},  # no such axis
])  # fmt: skip
def test_axes_that_do_not_follow_from_each_other_are_no_region(chosen: dict[str, int]) -> None:
    assert region(MOVED, chosen, last=np.array([1])) is None


def test_a_member_that_needs_all_of_another_is_no_region() -> None:
    text = "g (float[4,6] x, float[8,4] m) => (float[8,6] y) { a = Exp(x) y = MatMul(m, a) }"
    assert region(text, {"a": 0, "y": 0}) is None
    assert region(text, {"a": 1, "y": 1}) == ["y"]
    assert region("g (float[4,6] x) => (float[4,6] y) { a = Exp(x) y = Softmax(a) }", {"a": 1, "y": 1}) is None
    assert region("g (float[4,6] x) => (float[4,6] y) { a = Exp(x) y = Softmax(a) }", {"a": 0, "y": 0}) == ["y"]


def test_keys_come_before_the_tiles_of_queries() -> None:
    """Rows of a are those of q, k and the queries, but every query sees all keys: k and what leads there run before."""
    model = load(
        support.model(
            """g (float[1,12,8] x) => (float[1,12,8] y) {
                a = Relu(x) q = MatMul(a, w) b = Exp(a) k = MatMul(b, w)
                s = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, k) y = Add(s, x)
            }""",
            23, w=np.ones((8, 8), np.float32),
        )
    )  # fmt: skip
    facts, order = Facts(model), list(model.graph)
    axes = axes_from(facts, order[-1].outputs[0], 1, order)
    members = members_of(facts, order, axes)
    assert [node.op_type for node in members] == ["MatMul", "Attention", "Add"]
    region = region_of(facts, members, axes)
    assert region is not None and members[0].outputs[0].name == "q"
    steps = [step_text(step) for step in steps_of(facts, region, 2) or ()]
    assert (
        steps[1] == "MatMul a[1: 0-6], w => q[1: 0-6] (0.500)"
        and "Attention q[1: 0-6], k, k => s[1: 0-6] (0.500)" in steps
    )


ATTENTION = """g (float[4,6,8] q, float[4,5,8] k) => (float[4,6,8] y) {
    y = Attention<q_num_heads = 2, kv_num_heads = 2 OPTIONS>(q, k, k, m)
}"""


@pytest.mark.parametrize(
    ("axis", "options", "mask", "given"),
    [
        (0, "", (4, 1, 6, 5), "q[0: 2-4], k[0: 2-4], k[0: 2-4], m[0: 2-4]"),
        (0, "", (6, 5), "q[0: 2-4], k[0: 2-4], k[0: 2-4], m"),
        (0, ", is_causal = 1", (6, 5), "q[0: 2-4], k[0: 2-4], k[0: 2-4], m"),
        (1, "", (4, 2, 6, 5), "q[1: 3-6], k, k, m[2: 3-6]"),
        (1, "", (6, 5), "q[1: 3-6], k, k, m[0: 3-6]"),
        (1, "", (1, 5), "q[1: 3-6], k, k, m"),
        (1, ", is_causal = 1", (6, 5), None),
        (2, "", (6, 5), "q[2: 4-8], k[2: 4-8], k[2: 4-8], m"),
        (2, ", is_causal = 1", (2, 6, 5), "q[2: 4-8], k[2: 4-8], k[2: 4-8], m[0: 1-2]"),
    ],
)
def test_attention_has_parts_of_batches_queries_and_heads(
    axis: int, options: str, mask: tuple[int, ...], given: str | None
) -> None:
    model = load(support.model(ATTENTION.replace("OPTIONS", options), 23, m=np.zeros(mask, np.float32)))
    facts, order = Facts(model), list(model.graph)
    region = region_of(facts, order, {order[0].outputs[0]: axis})
    if given is None:
        assert region is None
        return
    assert region is not None
    runs = [step for step in steps_of(facts, region, 2) or () if isinstance(step, Run)]
    assert ", ".join(map(piece_text, runs[1].inputs)) == given

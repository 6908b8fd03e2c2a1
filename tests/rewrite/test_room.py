"""How large a result may be: what is given up where it is too large, and what is done with room that is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
import pytest

from graphopt.check.verification import UNCHANGED
from graphopt.flows.optimize import DEFAULT_VERIFY_SECONDS
from graphopt.model.census import file_bytes
from graphopt.model.load import load
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.editor import Editor, usual_budget
from graphopt.rewrite.optimizer import optimize_verified
from graphopt.rewrite.provenance import PROVENANCE
from tests import support

MODEL = support.model("g (float[4] x) => (float[4] y) { a = Identity(x) b = Identity(a) c = Neg(b) y = Exp(c) }")
USUAL = usual_budget(load(MODEL))
GROWTH = 1000  # bytes that the pass below asks for
NARROW = 3  # nodes where the budget did not suffice


def writing(
    growth: int = GROWTH, *, fewer: bool = True, larger: int = 0
) -> Callable[[Editor, Sequence[ir.Node]], None]:
    """A pass that takes one Identity away, and the other where it may write `growth` bytes; it writes `larger`."""

    def run(editor: Editor, worklist: Sequence[ir.Node]) -> None:
        for node in worklist:
            if node.op_type != "Identity":
                continue
            (output,), (value,) = node.outputs, node.inputs
            assert value is not None
            if output.name == "b":
                if editor.budget < USUAL + growth:
                    editor.refuse_growth(growth)
                    continue
                editor.model.graph.doc_string = "+" * larger
            if editor.accept("write", output) and (fewer or output.name == "a"):
                editor.replace_value(output, value)
                editor.sweep([node])

    return run


def nodes_left(run: Callable[[Editor, Sequence[ir.Node]], None], room: int | None) -> int:
    """The nodes of the result in a file that may have `room` bytes more than the one under the usual budget."""
    alone = optimize_verified(load(MODEL), ((Pass("write", 1, run=run),),), seconds=None).model
    assert len(alone.graph) == NARROW
    most = None if room is None else file_bytes(alone) + room
    found = optimize_verified(load(MODEL), ((Pass("write", 1, run=run),),), seconds=None, most_bytes=most)
    return len(found.model.graph)


@pytest.mark.parametrize(("room", "left"), [(None, 3), (0, 3), (GROWTH - 1, 3), (GROWTH, 2), (9 * GROWTH, 2)])
def test_room_that_suffices_is_used(room: int | None, left: int) -> None:
    assert nodes_left(writing(), room) == left


def test_room_is_not_used_for_a_file_that_is_larger_or_no_shorter() -> None:
    assert nodes_left(writing(fewer=False), GROWTH) == NARROW
    assert nodes_left(writing(larger=3 * GROWTH), 2 * GROWTH) == NARROW
    assert nodes_left(writing(larger=3 * GROWTH), 4 * GROWTH) == NARROW - 1


def test_a_file_may_be_as_large_as_it_may_be() -> None:
    passes = ((Pass("write", 1, run=writing(larger=2 * GROWTH)),),)
    wide = optimize_verified(load(MODEL), passes, seconds=None, most_bytes=file_bytes(load(MODEL)) + 9 * GROWTH).model
    for most, left in ((file_bytes(wide), NARROW - 1), (file_bytes(wide) - 1, NARROW)):
        assert len(optimize_verified(load(MODEL), passes, seconds=None, most_bytes=most).model.graph) == left


def test_a_file_that_is_too_large_is_made_again_without_writing_out() -> None:
    def wasting(editor: Editor, worklist: Sequence[ir.Node]) -> None:
        node = next((node for node in worklist if node.op_type == "Identity"), None)
        if node is not None and editor.accept("waste", node.outputs[0]):
            editor.model.graph.doc_string = "+" * (5000 if editor.budget else 0)
            editor.replace_value(node.outputs[0], node.inputs[0])  # type: ignore[arg-type]
            editor.sweep([node])

    passes = ((Pass("waste", 1, run=wasting),),)
    large = optimize_verified(load(MODEL), passes, seconds=None).model
    assert file_bytes(large) > 5000
    kept = optimize_verified(load(MODEL), passes, seconds=None, most_bytes=file_bytes(large)).model
    assert kept.graph.doc_string, "it is no larger than it may be"
    small = optimize_verified(load(MODEL), passes, seconds=None, most_bytes=file_bytes(large) - 1).model
    assert not small.graph.doc_string and len(small.graph) == len(large.graph) == 2


def test_what_is_made_again_is_made_lighter_too() -> None:
    """Without writing out 5,000 bytes the file is still too large: a line of 1,000 says where a node is from."""

    def wasting(editor: Editor, worklist: Sequence[ir.Node]) -> None:
        for node in worklist:
            if node.op_type == "Neg" and editor.accept("waste", node.outputs[0]):
                editor.model.graph.doc_string = "+" * (5000 if editor.budget else 0)
                node.metadata_props[PROVENANCE] = "-" * 1000

    most = file_bytes(load(MODEL)) + 500
    found = optimize_verified(load(MODEL), ((Pass("waste", 1, run=wasting),),), seconds=None, most_bytes=most).model
    assert file_bytes(found) <= most
    assert not found.graph.doc_string and not any(PROVENANCE in node.metadata_props for node in found.graph)


def test_a_run_that_changes_nothing_is_as_large_as_it_was() -> None:
    def bloating(editor: Editor, worklist: Sequence[ir.Node]) -> None:
        editor.model.graph.doc_string = "unlogged"

    found = optimize_verified(
        load(MODEL), ((Pass("bloat", 1, run=bloating),),), seconds=DEFAULT_VERIFY_SECONDS, most_bytes=1
    )
    assert found.verification == UNCHANGED and not found.log and found.model.graph.doc_string == "unlogged"

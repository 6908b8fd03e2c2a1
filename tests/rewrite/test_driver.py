"""The driver: which nodes a pass sees in its turns, what stops a run, and what is written down of each pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
import onnx_ir as ir
import pytest

from graphopt.errors import OptionError
from graphopt.model.nodes import ReferenceAttribute
from graphopt.rewrite.driver import MAX_ROUNDS, BrokenRewrite, Pass, attempt, run_passes, run_rules
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node, rule
from tests import support

CHAIN = "g (float[4] x) => (float[4] y) { a = Neg(x) b = Identity(a) c = Neg(b) d = Identity(c) y = Exp(d) }"


@rule(op("Identity", var("x")), level=0)
def remove_identity(match: Match) -> Replacement:
    """Identity(x)  -->  x"""
    return match["x"]


@rule(op("Neg", op("Neg", var("x"))), level=1)
def remove_neg_of_neg(match: Match) -> Replacement:
    """-(-x)  -->  x"""
    return match["x"]


@rule(op("Exp", var("x")), level=1)
def exp_to_softplus(match: Match) -> Replacement:
    """Exp(x)  -->  Softplus(x), which is wrong, and never ends with its like"""
    return match.op("Softplus", match["x"])


@rule(op("Softplus", var("x")), level=1)
def softplus_to_exp(match: Match) -> Replacement:
    """Softplus(x)  -->  Exp(x), likewise"""
    return match.op("Exp", match["x"])


def edited(text: str = CHAIN, **options: object) -> Editor:
    return Editor(ir.from_proto(support.model(text)), **options)  # type: ignore[arg-type]


def kinds(editor: Editor) -> list[str]:
    return [node.op_type for node in editor.model.graph]


class Seen:
    """A pass that changes nothing and remembers what it was given."""

    def __init__(self) -> None:
        self.turns: list[list[str]] = []

    def __call__(self, editor: Editor, worklist: Sequence[ir.Node]) -> None:
        self.turns.append([str(node.outputs[0].name) for node in worklist])


def test_a_pass_sees_everything_once_and_then_what_changes() -> None:
    first, last, editor = Seen(), Seen(), edited()
    passes = [Pass("first", 0, run=first), Pass("id", 0, (remove_identity,)), Pass("last", 0, run=last)]
    records = run_passes(editor, passes)
    assert kinds(editor) == ["Neg", "Neg", "Exp"]
    assert first.turns[0] == ["a", "b", "c", "d", "y"], "in topological order"
    assert sorted(first.turns[1]) == ["a", "c", "y"], "what reads, and what is read, around both changes"
    assert len(first.turns) == 2
    assert last.turns == [["a", "c", "y"]], "in the second round nothing is new for the last"
    told = [(record.name, record.rewrites, record.nodes_before, record.nodes_after) for record in records]
    assert told == [("first", 0, 5, 5), ("id", 2, 5, 3), ("last", 0, 3, 3)]


def test_rules_run_again_around_each_change_within_one_turn() -> None:
    editor = edited()
    (record,) = run_passes(editor, [Pass("both", 1, (remove_identity, remove_neg_of_neg))])
    assert kinds(editor) == ["Exp"] and record.rewrites == 3
    assert [rewrite.rule for rewrite in editor.log] == ["remove-identity", "remove-neg-of-neg", "remove-identity"]
    assert {rewrite.pass_name for rewrite in editor.log} == {"both"}
    assert [rewrite.number for rewrite in editor.log] == [1, 2, 3]


def test_one_turn_of_rules_goes_on_around_its_own_changes() -> None:
    """Two negations meet only when the Identity between them is gone; nothing else is in the worklist."""
    editor = edited()
    between = [node for node in editor.model.graph if node.outputs[0].name == "b"]
    run_rules(editor, (remove_identity, remove_neg_of_neg), between)
    assert kinds(editor) == ["Exp"], "what reads the changed places was tried, though it was not in the worklist"


def test_passes_that_undo_one_another_end_after_some_rounds() -> None:
    editor = edited()
    there, back = run_passes(editor, [Pass("there", 1, (exp_to_softplus,)), Pass("back", 1, (softplus_to_exp,))])
    assert (there.rewrites, back.rewrites) == (MAX_ROUNDS, MAX_ROUNDS)
    assert kinds(editor)[-1] == "Exp"


@pytest.mark.parametrize("most", range(4))
def test_a_run_that_is_cut_short_stops_between_rules_and_passes(most: int) -> None:
    editor, last = edited(stop_after=most), Seen()
    run_passes(editor, [Pass("both", 1, (remove_identity, remove_neg_of_neg)), Pass("last", 0, run=last)])
    assert len(editor.log) == most
    assert not last.turns, "three changes are all there are, and with them the run is over"
    assert len(kinds(editor)) == (5, 4, 2, 1)[most]


def test_progress_names_the_passes_that_have_something_to_look_at() -> None:
    told: list[str] = []
    passes = [Pass("id", 0, (remove_identity,)), Pass("neg", 0, (remove_neg_of_neg,)), Pass("look", 0, run=Seen())]
    run_passes(edited(), passes, told.append)
    assert told == ["id", "neg", "look", "id", "neg"], "the last one has seen the end of the first round"


def test_a_request_that_cannot_be_served_is_told_as_it_is() -> None:
    def refusing(editor: Editor, worklist: Sequence[ir.Node]) -> None:
        raise OptionError("give dims.")

    def failing(editor: Editor, worklist: Sequence[ir.Node]) -> None:
        raise KeyError("a bug")

    with pytest.raises(OptionError, match=r"give dims\."):
        run_passes(edited(), [Pass("refusing", 0, run=refusing)])
    with pytest.raises(BrokenRewrite, match=r"failing at '\*': KeyError: 'a bug'") as broken:
        run_passes(edited(), [Pass("failing", 0, run=failing)])
    assert (broken.value.rule, broken.value.site) == ("failing", "*")
    run_passes(edited(blocked=frozenset({("failing", "*")})), [Pass("failing", 0, run=failing)])


def test_a_rule_that_fails_is_named_with_its_place() -> None:
    @rule(op("Exp", var("x")), level=1)
    def failing(match: Match) -> Replacement:
        """Fails."""
        raise ZeroDivisionError("a bug")

    with pytest.raises(BrokenRewrite, match=r"failing at 'y': ZeroDivisionError: a bug"):
        run_passes(edited(), [Pass("rules", 1, (failing,))])
    run_passes(edited(blocked=frozenset({("failing", "y")})), [Pass("rules", 1, (failing,))])


def refuse(match: Match) -> Replacement:
    match.refuse("it was not worth it")


def read_an_open_attribute(match: Match) -> Replacement:
    raise ReferenceAttribute("attribute 'axis' is given by the function's caller")


def give_an_input_the_name_of_an_output(match: Match) -> Replacement:
    return match["x"]


@pytest.mark.parametrize("end", [refuse, read_an_open_attribute, give_an_input_the_name_of_an_output])
def test_what_a_rule_has_built_in_vain_reads_nothing(end: Callable[[Match], Replacement]) -> None:
    @rule(op("Exp", var("x")), level=1)
    def in_vain(match: Match) -> Replacement:
        """Builds two nodes before it is refused."""
        match.op("Neg", match.op("Abs", match["x"]))
        return end(match)

    editor = edited("g (float[4] x) => (float[4] y) { y = Exp(x) }")
    (exp,) = editor.model.graph
    assert not attempt(editor, in_vain, exp)
    assert editor.model.graph.inputs[0].consumers() == (exp,)


def test_a_rule_taken_back_at_one_place_fires_at_the_others() -> None:
    editor = edited(blocked=frozenset({("remove-identity", "b")}))
    run_passes(editor, [Pass("id", 0, (remove_identity,))])
    assert kinds(editor) == ["Neg", "Identity", "Neg", "Exp"]
    editor = edited(blocked=frozenset({("remove-identity", "*")}))
    run_passes(editor, [Pass("id", 0, (remove_identity,))])
    assert not editor.log


def test_rules_leave_other_domains_and_what_a_caller_gives() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[4] x) => (float[4] y, float[4] z) {
            a = mine.half <a = 0.5> (x) y = mine.half <a = 0.25> (a) z = mine.Relu(x)
        }
        <domain: "mine", opset_import: ["" : 17]> half <a> (x) => (y) {
            p = LeakyRelu <alpha: float = @a> (x) y = Relu(p)
        }
        """
    )
    tried: list[str] = []

    @any_node(level=1)
    def looking(match: Match) -> Replacement:
        """Remembers where it is tried."""
        tried.append(match.root.op_type)
        match.refuse("it only looks")

    run_passes(Editor(ir.from_proto(proto)), [Pass("look", 1, (looking,))])
    assert tried == ["Relu"], "the one inside the function whose attributes are its own"


def test_a_rule_for_any_operator_is_tried_beside_those_for_one() -> None:
    tried: list[str] = []

    def note(name: str, *anchors: str) -> Rule:
        @any_node(*anchors, level=1)
        def looking(match: Match) -> Replacement:
            """Remembers where it is tried."""
            tried.append(f"{name} {match.root.op_type}")
            match.refuse("it only looks")

        return looking

    run_passes(edited(), [Pass("look", 1, (note("any"), note("exp", "Exp"), note("either", "Exp", "Neg")))])
    assert tried == [
        "either Neg", "any Neg", "any Identity", "either Neg", "any Neg", "any Identity",
        "exp Exp", "either Exp", "any Exp",
    ]  # fmt: skip


def test_what_a_rule_built_and_did_not_need_is_no_reader() -> None:
    """A node that was built before a condition refused must not count as a reader of what it read."""

    @rule(op("Exp", var("x")), level=1)
    def building(match: Match) -> Replacement:
        """Builds, and refuses."""
        match.op("Add", match["x"], match.ints_constant(1))
        match.refuse("after all not")

    @any_node("Exp", level=1)
    def renaming(match: Match) -> Replacement:
        """Gives what would have to be renamed, which the editor refuses."""
        return match.root.inputs

    for each in (building, renaming):
        editor = edited("g (float[4] x) => (float[4] y) { y = Exp(x) }")
        node = next(iter(editor.model.graph))
        (value,) = editor.model.graph.inputs
        assert not attempt(editor, each, node)
        assert [user.op_type for user, _ in value.uses()] == ["Exp"]


def test_a_node_that_is_gone_is_not_tried() -> None:
    """The first rule takes the node away; the second must not be asked at it, nor at its like that is swept."""

    @any_node("Neg", "Identity", level=1)
    def looking(match: Match) -> Replacement:
        """Every node that is tried stands in a graph."""
        assert match.root.graph is not None
        match.refuse("it only looks")

    editor = edited()
    run_passes(editor, [Pass("both", 1, (remove_identity, remove_neg_of_neg, looking))])
    assert kinds(editor) == ["Exp"]

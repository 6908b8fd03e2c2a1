"""Why a rule did not fire: at which nodes it is asked, what is told, and that nothing is changed by asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
import pytest

from graphopt.rewrite.driver import Pass
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.explain import (
    FITS,
    Explainer,
    NearMiss,
    NearMisses,
    Reason,
    find_node,
    fired,
    is_anchored_at,
    touching,
)  # fmt: skip
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.record import LeftAlone, Rewrite
from graphopt.rewrite.rule import Match, Replacement, any_node, rule
from tests import support

TEXT = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
g (float[4] x) => (float[4] y, float[4] z) {
    a = Neg(x) b = Exp(a) c = Neg(b) d = Neg(c) e = mine.Neg(d) f = mine.half <a = 0.5> (e) y = Abs(f) z = Exp(x)
}
<domain: "mine", opset_import: ["" : 17]> half <a> (x) => (y) { p = LeakyRelu <alpha: float = @a> (x) y = Neg(p) }"""


OUTSIDE = "the operator belongs to the domain 'mine', which rules leave alone"


def reason(text: str, *nodes: str) -> Reason:
    """A reason that is the same at each of the nodes, with every name that it quotes."""
    return Reason(text, text, nodes)


@rule(op("Neg", op("Neg", var("x"))), level=1)
def neg_of_neg(match: Match) -> Replacement:
    """-(-x)  -->  x, not for a name that ends in d"""
    match.require(match.output.name != "d", "it is called d")
    return match["x"]


@rule(op("Exp", var("x")), level=2)
def exp_of_input(match: Match) -> Replacement:
    """Exp(x)  -->  x, which an output cannot take over"""
    return match["x"]


@any_node("Abs", "LeakyRelu", level=1)
def failing(match: Match) -> Replacement:
    """Fails."""
    raise ZeroDivisionError("a bug")


@any_node(level=3)
def refusing(match: Match) -> Replacement:
    """Refuses everywhere."""
    match.refuse(f"not '{match.output.name}'")


@pytest.fixture
def asked() -> Explainer:
    return Explainer(ir.from_proto(onnx.parser.parse_model(TEXT)))


def test_each_node_tells_why_a_rule_leaves_it(asked: Explainer) -> None:
    before = asked._editor.model.graph
    kept = [node.op_type for node in before]
    told = {
        f"{each.name} {node.outputs[0].name}": asked.reason(each, node)
        for each in (neg_of_neg, exp_of_input, failing)
        for node in asked.nodes
        if is_anchored_at(each, node)
    }
    assert told == {
        "neg-of-neg a": "'x' is not computed by Neg",
        "neg-of-neg c": "Exp 'b' stands where Neg is wanted",
        "neg-of-neg d": "it is called d",
        "neg-of-neg e": OUTSIDE,
        "neg-of-neg y": "LeakyRelu 'p' stands where Neg is wanted",
        "exp-of-input b": FITS,
        "exp-of-input z": "'x' would have to be renamed to the graph output 'z'",
        "failing y": "the rule failed with an error of its own (ZeroDivisionError: a bug)",
        "failing p": "an attribute is a parameter of the surrounding function",
    }
    assert [node.op_type for node in before] == kept, "asking changes nothing"


def test_equal_reasons_are_told_once_and_most_first(asked: Explainer) -> None:
    assert asked.reasons(refusing, asked.nodes) == (
        Reason(
            "not '...'",
            "not 'a', 'b', ...",
            ("Neg 'a'", "Exp 'b'", "Neg 'c'", "Neg 'd'", "Abs 'y'", "Exp 'z'", "Neg 'y'"),
        ),
        Reason("the operator belongs to the domain '...', which rules leave alone", OUTSIDE, ("Neg 'e'", "half 'f'")),
        reason("an attribute is a parameter of the surrounding function", "LeakyRelu 'p'"),
    )  # fmt: skip
    assert [reason.text for reason in asked.reasons(neg_of_neg, asked.nodes)] == [
        "'x' is not computed by Neg", "Exp 'b' stands where Neg is wanted", "LeakyRelu 'p' stands where Neg is wanted",
        "it is called d", OUTSIDE,
    ]  # fmt: skip
    assert asked.reasons(neg_of_neg, asked.nodes[:1]) == (reason("'x' is not computed by Neg", "Neg 'a'"),)


def why(editor: Editor, where: Sequence[ir.Node]) -> Mapping[ir.Node, LeftAlone]:
    """Exp is nearly what the pass looks for, Abs is not."""
    return {
        node: LeftAlone(f"{node.op_type} is not it", node.op_type == "Exp")
        for node in where
        if node.op_type in ("Exp", "Abs")
    }


STEPS = (Pass("rules", 1, (neg_of_neg, failing, exp_of_input, refusing)), Pass("function", 1, why=why))
NEG, EXP = reason("it is called d", "Neg 'd'"), reason("Exp is not it", "Exp 'b'", "Exp 'z'")


def test_near_misses_are_what_fits_and_a_condition_refuses(asked: Explainer) -> None:
    rules = NearMiss("neg-of-neg", "rules", False, (NEG,))
    function = NearMiss("function", "function", False, (EXP,))
    assert asked.near_misses(STEPS, 1, 1000) == NearMisses((rules, function), True)
    exps = NearMiss(
        "exp-of-input", "rules", False,
        (reason("'x' would have to be renamed to the graph output 'z'", "Exp 'z'"), reason(FITS, "Exp 'b'")),
    )  # fmt: skip
    assert asked.near_misses(STEPS, 2, 1000) == NearMisses((rules, exps, function), True)
    (*_, all_over, last) = asked.near_misses(STEPS, 3, 1000).found
    assert all_over.searching and last == function
    assert [len(reason.nodes) for reason in all_over.reasons] == [7], "not in other domains, nor where a caller says"


def test_asking_ends_after_so_many_tries(asked: Explainer) -> None:
    tries = 5 + 1 + 1  # at what is called Neg, Abs, LeakyRelu; the pass that is a function costs none
    assert asked.near_misses(STEPS, 1, tries).complete
    cut = asked.near_misses(STEPS, 1, tries - 1)
    assert (len(cut.found), cut.complete) == (1, False)
    assert asked.near_misses(STEPS, 1, 0) == NearMisses((), False)


def test_a_pass_that_is_a_function_tells_of_all_that_it_left(asked: Explainer) -> None:
    assert asked.left_alone(STEPS[1], asked.nodes) == (EXP, reason("Abs is not it", "Abs 'y'"))
    assert asked.left_alone(STEPS[0], asked.nodes) == ()


LOG = (
    Rewrite(1, "step", "r", "a", ("Neg 'a'",), ("Abs 'new'",)),
    Rewrite(2, "r", "s", "b", ("Exp 'named'", "Neg 'a'"), ()),
    Rewrite(3, "step", "t", "ab", ("Exp 'ab'",), ("Neg 'a'",)),
)


def test_what_fired_is_found_by_the_name_of_rule_or_pass() -> None:
    assert [one.number for one in fired(LOG, "r")] == [1, 2]
    assert [one.number for one in fired(LOG, "step")] == [1, 3] and not fired(LOG, "a")


def test_what_became_of_a_node_is_told_by_its_name_or_its_values() -> None:
    first, second, *_ = ir.from_proto(support.model("g (float[4] x) => (float[4] b) { a = Neg(x) b = Exp(a) }")).graph
    second.name = "named"
    assert [one.number for one in touching(LOG, first)] == [1, 2], "not what only has the name in longer ones"
    assert [one.number for one in touching(LOG, second)] == [2]
    second.name = "a"
    assert [one.number for one in touching(LOG, second)] == [1, 2]
    assert find_node([first, second], "a") is second, "a node's own name comes first"
    assert find_node([first, second], "b") is second and find_node([first, second], "c") is None
    second.name = None
    assert find_node([first, second], "a") is first

"""The editor: the gate, names, versions, what is touched and what is removed, and who may carry an output's name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.rewrite.editor import FAN_OUT, GROWTH_BYTES, Editor, usual_budget
from graphopt.rewrite.rule import Match, Refused, Replacement, bind
from tests import support
from tests.rewrite.editing import CHAIN, at, edited, written

# -- the gate ---------------------------------------------------------------------------------------------------------


def test_changes_are_numbered_and_the_gate_shuts_after_the_last() -> None:
    editor = Editor(ir.from_proto(support.model(CHAIN)), stop_after=2, blocked=frozenset({("r", "a"), ("whole", "*")}))
    editor.pass_name = "step"
    asked = [("r", "a"), ("r", "b"), ("whole", "b"), ("other", "a"), ("other", "b")]
    assert [editor.accept(rule, site) for rule, site in asked] == [False, True, False, True, False]
    assert [(one.number, one.pass_name, one.rule, one.site) for one in editor.log] == [
        (1, "step", "r", "b"), (2, "step", "other", "a"),
    ]  # fmt: skip
    assert editor.finished and not Editor(ir.from_proto(support.model(CHAIN))).finished


def test_a_change_is_accepted_at_a_value_by_its_name() -> None:
    editor = edited()
    node = next(iter(editor.model.graph))
    assert editor.accept("r", node.outputs[0], [node, "and others"], ["Relu 'new'"], reason="why")
    (record,) = editor.log
    assert (record.site, record.before, record.after, record.reason) == (
        "a", ("Neg 'a'", "and others"), ("Relu 'new'",), "why",
    )  # fmt: skip


def test_the_least_growth_that_was_refused_is_remembered() -> None:
    editor = edited(w=np.ones(6600, np.float32))
    assert editor.budget == usual_budget(editor.model) == GROWTH_BYTES + 400, "a sixty-sixth of 26,400 bytes"
    assert edited(budget=0).budget == 0
    for growth in (300, 200, 250):
        editor.refuse_growth(growth)
    assert editor.refused_growth == 200


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_new_name_is_nobodys() -> None:
    proto = support.model(
        """g (float[4] x, bool c) => (float[4] y) { a = Neg(x) y = If(c) <
            then_branch = t () => (float[4] u) { u = Add(a, w) },
            else_branch = e () => (float[4] v) { v = Exp(x) }> }""",
        w=np.ones(4, np.float32),
    )  # fmt: skip
    proto.graph.node[0].name = "named"
    editor = Editor(ir.from_proto(proto))
    taken = ["x", "c", "a", "y", "u", "v", "w", "named"]
    assert [editor.unique(name) for name in taken] == [f"{name}_1" for name in taken]
    assert [editor.unique(name) for name in ("new", "new", "new", "", "")] == ["new", "new_1", "new_2", "_1", "_2"]


def test_new_nodes_and_values_are_named_after_the_place() -> None:
    editor = edited()
    match = at(editor, "b")
    first = match.op("Sin", match.root.inputs[0])
    second = match.op("Add", first, match.constant(np.arange(4, dtype=np.float32)))
    assert editor.apply("r", match, match.op("Cos", second))
    assert written(editor) == [
        "a = Neg(x)", "b/Sin_output = Sin(a)", "b/Add_output = Add(b/Sin_output, b/constant)",
        "b = Cos(b/Add_output)", "y = Abs(b)",
    ]  # fmt: skip
    assert [node.name or "" for node in editor.model.graph] == ["", "b/Sin", "b/Add", "b/Cos", ""]
    assert list(editor.model.graph.initializers) == ["b/constant"]


# Value replaced, inner nodes, what is put there, and the graph after it, or why it is refused.
Build = Callable[[Match], Replacement]
OUTPUTS = "g (float[4] x) => (float[4] y, float[4] z) { a = Neg(x) y = Abs(a) z = Exp(y) }"
REPLACED: list[tuple[str, str, tuple[str, ...], Build, list[str] | str]] = [
    (CHAIN, "b", (), lambda match: match.root.inputs[0], ["a = Neg(x)", "y = Abs(a)"]),  # type: ignore[dict-item, misc, list-item]
    (CHAIN, "y", (), lambda match: match.root.inputs[0], ["a = Neg(x)", "y = Exp(a)"]),  # type: ignore[dict-item, misc, list-item]
    (  # an input cannot be renamed, but an Identity of it is fewer nodes than two
        CHAIN.replace("b = Exp(a)", "b = Neg(a)").replace("Abs(b)", "Identity(b)"), "y", ("b", "a"),
        lambda match: match.root.graph.inputs[0], ["y = Identity(x)"],  # type: ignore[union-attr]
    ),
    (CHAIN, "y", (), lambda match: match.root.graph.inputs[0],  # type: ignore[union-attr]
     "'x' would have to be renamed to the graph output 'y'"),
    (OUTPUTS, "z", (), lambda match: match.root.inputs[0],  # type: ignore[dict-item, misc, list-item]
     "'y' would have to be renamed to the graph output 'z'"),
    (OUTPUTS, "z", ("y",), lambda match: match.root.inputs[0],  # type: ignore[dict-item, misc, list-item]
     ["a = Neg(x)", "y = Abs(a)", "z = Identity(y)"]),
    (OUTPUTS, "y", (), lambda match: match.root.inputs[0], ["y = Neg(x)", "z = Exp(y)"]),  # type: ignore[dict-item, misc, list-item]
    (CHAIN, "y", (), lambda match: match.op("Sin", match.root.inputs[0]),
     ["a = Neg(x)", "b = Exp(a)", "y = Sin(b)"]),
    (CHAIN, "y", (), lambda match: match.constant(np.arange(4, dtype=np.float32)), []),
    (CHAIN, "b", (), lambda match: [None], "output 'b' is read and has no replacement"),
    (CHAIN, "b", (), lambda match: [], "output 'b' is read and has no replacement"),
    (CHAIN, "y", (), lambda match: [], "output 'y' is read and has no replacement"),
    ("g (float[4] x) => (float[2] y) { y, b = Split<axis = 0>(x, n) }", "y", (),
     lambda match: match.op("Slice", match.root.inputs[0], match.ints_constant(0), match.ints_constant(2)),
     ["y = Slice(x, y/constant, y/constant_1)"]),
    ("g (float[4] x) => (float[2] y) { a, b = Split<axis = 0>(x, n) y = Add(a, b) }", "a", (),
     lambda match: match.op("Sin", match.root.inputs[0]), "output 'b' is read and has no replacement"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name", "inner", "build", "after"), REPLACED)
def test_a_match_is_replaced(
    text: str, name: str, inner: tuple[str, ...], build: Build, after: list[str] | str
) -> None:
    editor = edited(text, n=np.array([2, 2])) if "Split" in text else edited(text)
    before = written(editor)
    match = at(editor, name, *inner)
    try:
        assert editor.apply("r", match, build(match))
    except Refused as refusal:
        editor.discard(match)
        assert str(refusal) == after and written(editor) == before and not editor.log
        return
    assert written(editor) == after
    outputs = [str(output.name) for output in editor.model.graph.outputs]
    assert outputs == [output.name for output in support.model(text).graph.output], "the signature stays"
    onnx.checker.check_model(ir.to_proto(editor.model), full_check=True)


def test_an_output_keeps_what_the_file_says_of_it() -> None:
    editor = edited("g (float[n] x) => (float[k] y) { a = Neg(x) y = Identity(a) }")
    old = editor.model.graph.outputs[0]
    old.doc_string, old.metadata_props["key"] = "the result", "kept"
    match = at(editor, "y")
    assert editor.apply("r", match, match.root.inputs[0])  # type: ignore[arg-type]
    (new,) = editor.model.graph.outputs
    assert new is not old and new.name == "y" and old.name is None
    assert (str(new.shape), new.doc_string, new.metadata_props["key"]) == ("[k]", "the result", "kept")


def test_a_gate_that_says_no_leaves_nothing_behind() -> None:
    editor = Editor(ir.from_proto(support.model(CHAIN)), stop_after=0)
    match = at(editor, "b")
    value = match.root.inputs[0]
    assert value is not None
    assert not editor.apply("r", match, match.op("Add", value, match.ints_constant(3)))
    assert written(editor) == ["a = Neg(x)", "b = Exp(a)", "y = Abs(b)"] and not editor.touched
    assert [node.op_type for node in value.consumers()] == ["Exp"] and not editor.model.graph.initializers
    assert list(match.new_constants[0].uses()) == []


def test_constants_that_nothing_reads_are_not_added() -> None:
    editor = edited()
    match = at(editor, "b")
    match.ints_constant(1)
    assert editor.apply("r", match, match.op("Add", match.root.inputs[0], match.constant(np.ones(4, np.float32))))
    assert list(editor.model.graph.initializers) == ["b/constant"]
    assert editor.model.graph.initializers["b/constant"].const_value.name == "b/constant"  # type: ignore[union-attr]


# -- what a change touches --------------------------------------------------------------------------------------------


def touched_by(text: str, name: str, build: Build) -> list[str]:
    editor = edited(text)
    match = at(editor, name)
    assert editor.apply("r", match, build(match))
    return sorted({str(node.outputs[0].name) for node in editor.touched if node.graph is not None})


def through(match: Match) -> Replacement:
    value = match.root.inputs[0]
    assert value is not None
    return value


def test_a_change_touches_what_reads_it_two_operators_down_and_what_it_read() -> None:
    text = """g (float[4] x) => (float[4] y) {
        far = Neg(x) above = Neg(far) it = Identity(above)
        below = Exp(it) under = Abs(below) deep = Sin(under) y = Cos(deep)
    }"""
    assert touched_by(text, "it", through) == ["above", "below", "under"]
    assert touched_by(text, "it", lambda match: match.op("Sin", match.root.inputs[0])) == [
        "above", "below", "it", "under",
    ]  # fmt: skip


def test_of_many_readers_only_some_are_followed_further() -> None:
    count = FAN_OUT + 4
    lines = " ".join(f"r{number} = Elu<alpha = {number}.5>(it) s{number} = Neg(r{number})" for number in range(count))
    outputs = ", ".join(f"float[4] s{number}" for number in range(count))
    touched = touched_by(f"g (float[4] x) => ({outputs}) {{ it = Identity(x) {lines} }}", "it", through)
    assert {name for name in touched if name.startswith("r")} == {f"r{number}" for number in range(count)}
    assert {name for name in touched if name.startswith("s")} == {f"s{number}" for number in range(FAN_OUT)}


def test_more_that_is_known_is_known_further_down_too() -> None:
    """The shape of a Reshape is open until the constant is there; then its readers are inferred again."""
    text = """g (float[2,3] x, int64[2] s) => (float[a,b] y, float[c,d] z) {
        t = Identity(s) r = Reshape(x, t) p = Neg(r) y = Exp(p) q = Abs(x) z = Sin(q)
    }"""
    editor = edited(text)
    found = {str(node.outputs[0].name): node.outputs[0] for node in editor.model.graph}
    assert editor.facts.static_shape(found["p"]) is None and editor.facts.static_shape(found["q"]) == (2, 3)
    match = at(editor, "t")
    assert editor.apply("r", match, match.ints_constant(3, 2))
    assert editor.facts.static_shape(found["y"]) == (3, 2) == editor.facts.static_shape(found["p"])
    touched = {str(node.outputs[0].name) for node in editor.touched}
    assert {"r", "p", "y"} <= touched and not {"q", "z"} & touched, "what was learned reaches no further"


def test_less_that_is_known_leaves_what_was_known() -> None:
    """A replacement is equal to what it replaces, whether or not anybody can infer its operator."""
    editor = edited("g (float[4] x) => (float[4] y) { a = Exp(x) b = Neg(a) y = Abs(b) }")
    match = at(editor, "a")
    new = match.op("Unheard", match.root.inputs[0], domain="mine")
    assert editor.facts.shape(new) is None
    assert editor.apply("r", match, new)
    found = {str(node.outputs[0].name): node.outputs[0] for node in editor.model.graph}
    assert editor.facts.static_shape(found["a"]) == (4,) == editor.facts.static_shape(found["b"])
    assert editor.model.graph.opset_imports["mine"] == 1, "the file imports the domain now"


# -- removing ---------------------------------------------------------------------------------------------------------


def test_what_only_the_removed_had_read_goes_too() -> None:
    text = """g (float[4] x, bool c) => (float[4] y, float[4] k) {
        a = Neg(x) kept = Exp(x) b = Add(a, kept) k = Sin(kept)
        w = If(c) <
            then_branch = t () => (float[4] u) { u = Add(a, b) }, else_branch = e () => (float[4] v) { v = Abs(b) }>
        r = RandomNormal<shape = [4]>() y = Cos(x)
    }"""
    editor = edited(text)
    found = {str(node.outputs[0].name): node for node in editor.model.graph}
    graphs = len(editor.graphs())
    editor.sweep([found["y"], found["a"]])
    assert len(written(editor)) == 7, "what is read or returned stays"
    editor.sweep([found["w"]])
    assert written(editor) == ["kept = Exp(x)", "k = Sin(kept)", "r = RandomNormal()", "y = Cos(x)"]
    assert len(editor.graphs()) == graphs - 2 and editor.count_nodes() == 4
    assert {str(node.outputs[0].name) for node in editor.touched if node.graph is not None} == {"kept"}
    assert editor.is_dead(found["r"]) and not editor.is_dead(found["kept"])


def test_an_operator_that_nobody_knows_may_have_effects() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "mine" : 1, "ai.onnx.ml" : 3]>
        g (float[4] x) => (float[4] y) { a = mine.Print(x) b = ai.onnx.ml.Normalizer(x) y = Neg(x) }"""
    )
    editor = Editor(ir.from_proto(proto))
    editor.sweep(list(editor.model.graph))
    assert written(editor) == ["a = Print(x)", "y = Neg(x)"]


# -- versions of the file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loaded", "raised", "lowered"), [(3, 4, 4), (4, 4, 4), (8, 8, 8)]
)  # a new initializer needs IR version 4, and keeps it
def test_a_new_initializer_asks_for_a_version(loaded: int, raised: int, lowered: int) -> None:
    editor = edited(ir_version=loaded)
    match = at(editor, "b")
    assert editor.apply("r", match, match.op("Add", match.root.inputs[0], match.constant(np.ones(4, np.float32))))
    assert editor.model.ir_version == raised
    editor.lower_ir_version()
    assert editor.model.ir_version == lowered
    editor.model.graph.initializers.pop("b/constant")
    editor.lower_ir_version()
    assert editor.model.ir_version == loaded, "what had asked for it is gone"


def test_a_version_raised_for_more_is_not_lowered() -> None:
    editor = edited(ir_version=3)
    editor.raise_ir_version(7)
    assert editor.model.ir_version == 7
    editor.raise_ir_version()
    editor.lower_ir_version()
    assert editor.model.ir_version == 7


def function(name: str) -> ir.Function:
    (made,) = ir.from_proto(
        onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
            g (float[4] x) => (float[4] y) {{ y = mine.{name}(x) }}
            <domain: "mine", opset_import: ["" : 17]> {name} (x) => (y) {{ a = Neg(x) y = If(a) <
                then_branch = t () => (float[4] u) {{ u = Exp(a) }},
                else_branch = e () => (float[4] v) {{ v = Abs(a) }}> }}"""
        )
    ).functions.values()
    return made


@pytest.mark.parametrize(("loaded", "after"), [(3, 8), (7, 8), (8, 8), (9, 9)])
def test_a_new_function_asks_for_a_version_and_has_no_initializers(loaded: int, after: int) -> None:
    editor = edited(ir_version=loaded)
    before = len(editor.graphs())
    made = function("f")
    editor.add_function(made)
    assert editor.model.ir_version == after and len(editor.graphs()) == before + 3
    branches = [graph for graph in editor.graphs() if graph is not editor.model.graph]
    assert all(editor.is_in_function(graph) for graph in branches) and not editor.is_in_function(editor.model.graph)
    editor.lower_ir_version()
    assert editor.model.ir_version == after, "no earlier file can hold a function"
    first = next(iter(made))
    match = Match(first, bind(first), editor.facts)
    assert editor.apply("r", match, match.op("Add", first.inputs[0], match.constant(np.arange(4, dtype=np.float32))))
    assert [node.op_type for node in made] == ["Constant", "Add", "If"] and not made.graph.initializers
    constant, add, _ = made
    assert add.inputs[1] is constant.outputs[0]


def test_dims_of_new_values_are_written_where_the_file_had_them() -> None:
    for described in (False, True):
        proto = support.model(CHAIN)
        if described:
            proto = onnx.shape_inference.infer_shapes(proto)
        editor = Editor(ir.from_proto(proto))
        match = at(editor, "b")
        assert editor.apply("r", match, match.op("Sin", match.op("Cos", match.root.inputs[0])))
        shapes = {str(node.outputs[0].name): node.outputs[0].shape for node in editor.model.graph}
        assert (shapes["b/Cos_output"] is not None) is described
        if described:
            assert str(shapes["b/Cos_output"]) == "[4]"

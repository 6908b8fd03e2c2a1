"""What was taken back is not done again, what a function's caller gives is not taken for known, the caller's stays.

All three are tried on the graphs of near misses, in which each rule fires.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, helper

from graphopt.passes import pipeline
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from tests import support
from tests.passes.near.test_near_misses import FOLDER, RULES, TOLERANCE, outputs

NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))


def graph_of(name: str) -> onnx.ModelProto:
    return onnx.parser.parse_model((FOLDER / f"{name}.txt").read_text().partition("\n---\n")[0])


def changed(
    name: str, model: onnx.ModelProto, blocked: frozenset[tuple[str, str]], stop_after: int | None = None
) -> Editor:
    """The editor after the rule or pass of that name, which leaves out what is blocked; no other node reads values."""
    title = name.partition(".")[0]
    steps = [Pass(title, 1, (RULES[title],))] if title in RULES else pipeline.passes_named(title)
    editor = Editor(ir.from_proto(model), blocked=blocked, stop_after=stop_after)
    run_passes(editor, steps)
    inside = {node for graph in editor.graphs() for node in graph}
    for graph in editor.graphs():
        for value in (*graph.inputs, *graph.initializers.values(), *(made for node in graph for made in node.outputs)):
            assert inside.issuperset(value.consumers()), f"what was built and not wanted reads '{value.name}'"
    return editor


@pytest.mark.parametrize("name", NAMES)
def test_what_was_taken_back_is_not_done_again(name: str) -> None:
    model = graph_of(name)
    before = model.SerializeToString()
    done = changed(name, model, frozenset()).log
    assert done, "it fires in the graph as it is"
    for rewrite in done[:4]:
        taken = (rewrite.rule, rewrite.site)
        again = changed(name, model, frozenset([taken]))
        assert taken not in {(each.rule, each.site) for each in again.log}
        onnx.checker.check_model(ir.to_proto(again.model))
    rules = frozenset((rewrite.rule, "*") for rewrite in done)
    assert not {each.rule for each in changed(name, model, rules).log} & {rewrite.rule for rewrite in done}
    assert model.SerializeToString() == before, "the model that was given is the caller's"


@pytest.mark.parametrize("name", NAMES)
def test_a_run_may_stop_after_any_change(name: str) -> None:
    model = graph_of(name)
    done = changed(name, model, frozenset()).log
    for count in range(min(len(done), 3)):
        editor = changed(name, model, frozenset(), stop_after=count)
        assert [(each.rule, each.site) for each in editor.log] == [(each.rule, each.site) for each in done[:count]]
        result = ir.to_proto(editor.model)
        onnx.checker.check_model(result)
        if not count:
            assert result == ir.to_proto(ir.from_proto(model)), "nothing was to be changed"


def in_a_function(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The graph as the body of a function that is called once, with one attribute at a time given by the caller."""
    graph = model.graph
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in graph.initializer
    ]  # fmt: skip
    names = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in names]
    results = [value.name for value in graph.output]
    for place, node in enumerate(graph.node):
        for index, attribute in enumerate(node.attribute):
            if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) or node.op_type == "Constant":
                continue
            body = [onnx.NodeProto.FromString(each.SerializeToString()) for each in graph.node]
            given = body[place].attribute[index]
            given.CopyFrom(AttributeProto(name=attribute.name, type=attribute.type, ref_attr_name="given"))
            function = helper.make_function(
                "mine", "body", inputs, results, [*constants, *body], model.opset_import, ["given"]
            )
            call = helper.make_node("body", inputs, results, domain="mine")
            said = onnx.AttributeProto.FromString(attribute.SerializeToString())
            said.name = "given"
            call.attribute.append(said)
            whole = helper.make_model(
                helper.make_graph([call], "g", [value for value in graph.input if value.name in inputs], graph.output),
                functions=[function], ir_version=max(model.ir_version, 8),
                opset_imports=[*model.opset_import, helper.make_opsetid("mine", 1)],
            )  # fmt: skip
            yield f"{node.op_type} of {node.output[0]}: {attribute.name} is given", whole


@pytest.mark.parametrize("name", [name for name in NAMES if not graph_of(name).functions])
def test_what_a_caller_gives_is_not_taken_for_known(name: str) -> None:
    """A rule may leave such a function alone or change it; the results are those of the model either way."""
    model = graph_of(name)
    feed = support.feeds(model, {})
    for what, whole in in_a_function(model):
        editor = changed(name, whole, frozenset())
        if not editor.log:
            continue
        expected, found = outputs(whole, feed), outputs(ir.to_proto(editor.model), feed)
        if expected is None:
            continue
        assert found is not None, f"{what}: the result does not run"
        for one, other in zip(expected, found, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape, what
            close = TOLERANCE.get(one.dtype, 0.0)
            np.testing.assert_allclose(other, one, rtol=close, atol=close, err_msg=what)

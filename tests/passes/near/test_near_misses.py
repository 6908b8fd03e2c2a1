"""Each rule on a graph in which it fires, and on it with one thing changed: what it leaves, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.passes import pipeline
from graphopt.rewrite.driver import Pass, run_passes
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.explain import Explainer
from tests import support
from tests.passes.near.changes import changes

FOLDER = Path(__file__).parent / "graphs"
RULES = {rule.name: rule for rule in pipeline.rules()}
MOST = 120  # changes of a graph; of more, every second, third ... is tried
# A few roundings of float32 in sums of small graphs, where a regrouping may cancel; float16 has three digits.
TOLERANCE = {np.dtype(np.float16): 2e-2, np.dtype(np.float32): 1e-3, np.dtype(np.float64): 1e-6}


def left_by(name: str, model: onnx.ModelProto) -> tuple[str, onnx.ModelProto | None]:
    """The operators after the rule or pass of that name alone, and the model; or why it is left alone, and None."""
    steps = [Pass(name, 1, (RULES[name],))] if name in RULES else pipeline.passes_named(name)
    copy = ir.from_proto(model)
    editor = Editor(copy)
    run_passes(editor, steps)
    if editor.log:
        result = ir.to_proto(copy)
        return " ".join(node.op_type for node in result.graph.node), result
    explainer = Explainer(ir.from_proto(model))
    where = explainer.nodes
    reasons = [explainer.reasons(rule, where) for step in steps for rule in step.rules]
    reasons += [explainer.left_alone(step, where) for step in steps]
    told = " | ".join(reason.text for each in reasons for reason in each)
    return f"left alone: {told}" if told else "left alone", None


def outputs(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """What ONNX Runtime gives; None where it does not run the model."""
    try:
        return list(support.session(model).run(None, feed))
    except Exception:  # ONNX Runtime's errors share no base class
        return None


def feeds(model: onnx.ModelProto, given: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Inputs of a model; those of an open rank are the inputs of the one that it was changed from."""
    open_ranks = {value.name for value in model.graph.input if not value.type.tensor_type.HasField("shape")}
    return support.feeds(model, {}) | {key: each for key, each in support.feeds(given, {}).items() if key in open_ranks}


def line(name: str, what: str, model: onnx.ModelProto, given: onnx.ModelProto) -> str | None:
    """What the rule leaves of a model, compared with the model; None where the model does not run."""
    feed = feeds(model, given)
    expected = outputs(model, feed)
    if expected is None:
        return None
    left, result = left_by(name.partition(".")[0], model)
    if result is not None:
        found = outputs(result, feed)
        assert found is not None, f"{what}: the result does not run"
        for one, other in zip(expected, found, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape, what
            if one.dtype.kind == "f":
                close = TOLERANCE[one.dtype]
                np.testing.assert_allclose(other, one, rtol=close, atol=close, err_msg=what)
            else:
                np.testing.assert_array_equal(other, one, err_msg=what)
    return f"{what}: {left}"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_a_rule_and_its_near_misses(name: str, request: pytest.FixtureRequest) -> None:
    file = FOLDER / f"{name}.txt"
    graph, _, recorded = file.read_text().partition("\n---\n")
    model = onnx.parser.parse_model(graph)
    drawn = list(changes(model))
    drawn = drawn[:: -(-len(drawn) // MOST)]
    lines = [found for what, each in [("as it is", model), *drawn] if (found := line(name, what, each, model))]
    assert "left alone" not in lines[0], "it fires in the graph as it is"
    if request.config.getoption("--update-golden"):
        file.write_text("\n".join([graph, "---", *lines, ""]))
        return
    assert lines == recorded.splitlines()

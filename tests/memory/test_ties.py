"""An order that a runtime cannot leave: what is tied to what, and that nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from graphopt.memory.ties import tie, tie_all, visited_order
from graphopt.memory.tiling.axes import axes_from
from graphopt.memory.tiling.region import region_of, steps_of
from graphopt.memory.tiling.write import write_tiles
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.load import load
from graphopt.model.save import to_proto
from tests import support

TEXT = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Sin(x) b = Exp(a) c = Neg(b) y = Softmax(c) }"


def tiled(text: str = TEXT, members: str = "bc", count: int = 4, opset: int = 18) -> ir.Model:
    model = load(support.model(text, opset))
    facts = Facts(model)
    inside = [node for node in model.graph if node.outputs[0].name in set(members)]
    region = region_of(facts, inside, axes_from(facts, inside[-1].outputs[0], 2, inside))
    assert region is not None
    steps = steps_of(facts, region, count)
    assert steps is not None
    write_tiles(model, [(region, steps)])
    return model


def computed_again(text: str, name: str) -> ir.Model:
    model = load(support.model(text, 18))
    next(node for node in model.graph if node.outputs[0].name == name).metadata_props[nodes.RECOMPUTED] = "first"
    return model


def optimized_types(model: ir.Model, path: Path) -> list[str]:
    """Operators that ONNX Runtime runs, in its order."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(path), 4
    onnxruntime.InferenceSession(to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in load(path).graph]


def outputs(model: ir.Model) -> list[np.ndarray]:
    proto = to_proto(model)
    draw = np.random.default_rng(5)
    feed = {value.name: draw.standard_normal([1, 4, 8, 8]).astype(np.float32) for value in proto.graph.input}
    return list(support.session(proto).run(None, feed))


def test_tiles_wait_for_the_one_before() -> None:
    model = tiled()
    assert tie(model) == 6, "a Size and a Sub for each tile after the first, which follows what it is cut from"
    cuts = [node for node in model.graph if node.op_type == "Slice"]
    begins = [node.inputs[1].producer() if node.inputs[1] is not None else None for node in cuts]
    assert [None if node is None else node.op_type for node in begins] == [None, "Sub", "Sub", "Sub"]
    waits = [node for node in model.graph if nodes.TIED in node.metadata_props]
    sizes = [node.inputs[0].producer() for node in waits if node.op_type == "Size"]  # type: ignore[union-attr]
    assert [node.op_type for node in sizes if node is not None] == ["Neg"] * 3


def test_bits_stay() -> None:
    plain, model = tiled(), tiled()
    tie(model)
    for one, other in zip(outputs(plain), outputs(model), strict=True):
        np.testing.assert_array_equal(one, other)


def test_onnx_runtime_makes_one_split_of_slices_and_not_of_tied_ones(tmp_path: Path) -> None:
    """Otherwise ties would not be needed; and they hold through its optimizations."""
    model = tiled()
    assert "Split" in optimized_types(model, tmp_path / "plain.onnx")
    tie(model)
    kept = [name for name in optimized_types(model, tmp_path / "tied.onnx") if name in ("Split", "Slice", "Neg")]
    assert kept == ["Slice", "Neg"] * 4, "tile by tile"


def test_what_is_computed_again_reads_its_operand_in_a_shape_that_comes_late(tmp_path: Path) -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Sin(x) b = Exp(a) c = Sin(x) y = Add(b, c) }"
    model = computed_again(text, "c")
    assert optimized_types(model, tmp_path / "plain.onnx").count("Sin") == 1, "ONNX Runtime merges the two"
    assert tie(model) == 3
    assert [node.op_type for node in model.graph] == ["Sin", "Exp", "Size", "Sub", "Reshape", "Sin", "Add"]
    assert optimized_types(model, tmp_path / "tied.onnx").count("Sin") == 2
    (plain,), (after,) = outputs(load(support.model(text, 18))), outputs(model)
    np.testing.assert_array_equal(plain, after)


def test_a_tied_operand_has_a_type_where_the_file_declares_none() -> None:
    """A shape without a type is not written, and ONNX's library says so for each."""
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Sin(x) b = Exp(a) d = Exp(b) c = Exp(a) y = Add(d, c) }"
    model = computed_again(text, "c")
    assert next(node for node in model.graph if node.op_type == "Sin").outputs[0].type is None
    assert tie(model)
    assert next(node for node in model.graph if node.op_type == "Reshape").outputs[0].dtype is ir.DataType.FLOAT


def test_one_tie_holds_what_follows_in_the_same_computation() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Sin(x) b = Exp(a) c = Sin(x) d = Neg(c) y = Add(b, d) }"
    model = computed_again(text, "c")
    next(node for node in model.graph if node.op_type == "Neg").metadata_props[nodes.RECOMPUTED] = "n"
    assert tie(model) == 3


BRANCH = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
    a = Sin(x) b = Exp(a) c = Neg(b) d = Cos(a) e = Erf(d) y = Add(c, e)
}"""


def test_a_branch_behind_tiles_waits_for_them() -> None:
    """Cos reads what the tiles read; Erf follows it, and Add reads the tiles themselves."""
    model = tiled(BRANCH, count=2)
    assert tie(model) == 2 + 3
    kinds = [node.op_type for node in model.graph]
    assert kinds[kinds.index("Concat") :] == ["Concat", "Size", "Sub", "Reshape", "Cos", "Erf", "Add"]
    (plain,), (after,) = outputs(load(support.model(BRANCH, 18))), outputs(model)
    np.testing.assert_array_equal(plain, after)


STEPS = """g (float[1,4,8,8] x, float[1,4,8,8] w) => (float[1,4,8,8] y, float[1,4,8,8] z, float[1,4,8,8] v) {
    a = Sin(x) b = Cos(a) p = Exp(b) v = Mul(p, w) c = Neg(b) q = Erf(c) z = Mul(q, w) d = Cos(c) y = Sinh(d)
}"""


def executed(model: ir.Model, path: Path, *, optimized: bool = False) -> list[str]:
    """The operators in the order in which ONNX Runtime runs them, its own optimizations off unless `optimized`."""
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling, options.profile_file_prefix, options.log_severity_level = True, str(path), 4
    proto = to_proto(model)
    for number, node in enumerate(proto.graph.node):
        node.name = f"n{number}"
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, {value.name: np.ones([1, 4, 8, 8], np.float32) for value in proto.graph.input})
    events = json.loads(Path(session.end_profiling()).read_text())
    names = {node.name: node.op_type for node in proto.graph.node}
    return [names[one["name"][:-12]] for one in events if one["name"].endswith("_kernel_time")]


def test_the_order_of_onnx_runtime_is_known(tmp_path: Path) -> None:
    model = load(support.model(STEPS, 18))
    visited = [node.op_type for node in visited_order(model.graph)]
    assert visited == executed(model, tmp_path / "plain")
    assert visited != [node.op_type for node in model.graph], "branches that only outputs need are left for the end"


def large(order: list[str]) -> list[str]:
    return [kind for kind in order if kind not in ("Size", "Sub", "Add", "Reshape", "Unsqueeze", "Squeeze")]


def test_branches_that_would_be_left_for_the_end_are_tied(tmp_path: Path) -> None:
    model = load(support.model(STEPS, 18))
    assert tie_all(model, 1 << 20) == 0, "nothing is so large"
    assert tie_all(model, 1) == 6, "c waits for v, and d for z"
    kinds = [node.op_type for node in model.graph if nodes.TIED not in node.metadata_props]
    assert kinds == [node.op_type for node in load(support.model(STEPS, 18)).graph], "the file's order stays"
    for order in (executed(model, tmp_path / "tied"), [node.op_type for node in visited_order(model.graph)]):
        assert large(order) == kinds
    assert tie_all(model, 1) == 0, "every node waits already"
    assert tie_all(load(support.model(STEPS, 9)), 1) == 0, "Slice has its places as attributes"
    for one, other in zip(outputs(load(support.model(STEPS, 18))), outputs(model), strict=True):
        np.testing.assert_array_equal(one, other)


VIEWS = """g (float[1,4,8,8] x, float[1,4,8,8] w) => (float[1,4,8,8] y, float[256] z, float[1,4,8,8] v)
<int64[1] s = {256}, int64[4] t = {1, 4, 8, 8}, int64[1] o = {0}> {
    a = Sin(x) b = Cos(a) p = Exp(b) v = Mul(p, w) c = Neg(b) f = Reshape(c, s) q = Erf(f) u = Reshape(w, s)
    z = Mul(q, u) g = Reshape(c, t) h = Unsqueeze(g, o) i = Squeeze(h, o) d = Ceil(i) y = Sinh(d)
}"""


def test_a_tie_stays_where_onnx_runtime_makes_one_of_views(tmp_path: Path) -> None:
    """It takes the last shape of a chain for known, and what the others wait for is lost."""
    model = load(support.model(VIEWS, 18))
    given = large([node.op_type for node in model.graph])
    assert tie_all(model, 1) > 0 and tie_all(model, 1 << 20) == 0
    chains = [node for node in model.graph if node.op_type in ("Reshape", "Squeeze", "Unsqueeze")]
    alone = {value for node in chains for value in node.outputs if len(tuple(value.uses())) == 1}
    assert alone.isdisjoint(node.inputs[0] for node in chains), "no view of a view"
    assert large(executed(model, tmp_path / "plain")) == given
    assert large(executed(model, tmp_path / "optimized", optimized=True)) == given
    for one, other in zip(outputs(load(support.model(VIEWS, 18))), outputs(model), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_node_that_is_tied_already_waits_for_both(tmp_path: Path) -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] y, float k) {
        a = Sin(x) r = ReduceMean<keepdims = 0>(x) b = Exp(a) k = Neg(r) c = Sin(x) y = Add(b, c)
    }"""
    model = computed_again(text, "c")
    assert tie(model) == 3, "c waits for k"
    assert tie_all(model, 64) == 9, "r waits for a, b for r, and c for b too, since k is small"
    assert tie_all(model, 64) == 0
    assert [node.op_type for node in model.graph].count("Reshape") == 3, "no second one over the first"
    given = large([node.op_type for node in model.graph])
    assert large(executed(model, tmp_path / "tied", optimized=True)) == given
    for one, other in zip(outputs(load(support.model(text, 18))), outputs(model), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_weights_that_a_caller_may_give_are_cut_in_their_turn() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] y)
    <int64[1] m = {-1}, int64[1] e = {-9}, int64[1] n = {1}, int64[1] s = {-1}, float[1,4,8,8] w> {
        a = Sin(x) b = Exp(a) r = Slice(w, m, e, n, s) y = Mul(b, r)
    }"""
    proto = support.model(text, 18, w=np.arange(256, dtype=np.float32).reshape(1, 4, 8, 8))
    model = load(proto)
    assert tie_all(model, 1) == 2, "a Size and a Sub"
    begin = next(node for node in model.graph if node.op_type == "Slice").inputs[1]
    waits = None if begin is None else begin.producer()
    assert waits is not None and waits.op_type == "Sub"
    support.assert_equal(proto, to_proto(model), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (load(support.model(TEXT, 18)), "nothing is tiled or computed again"),
        (load(support.model(TEXT, 9)), "Slice has its places as attributes"),
        (computed_again("g (float[1,4,n,8] x) => (float[1,4,n,8] y) { a = Sin(x) y = Sin(a) }", "y"), "a dim is open"),
        (computed_again("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Sin(x) }", "y"), "nothing stands before"),
        (computed_again("g (float x) => (float z, float y) { z = Sin(x) y = Sin(x) }", "y"),
         "a scalar has no shape to wait for"),
    ],
)  # fmt: skip
def test_what_cannot_be_tied_stays(model: ir.Model, why: str) -> None:
    before = [node.op_type for node in model.graph]
    assert tie(model) == 0 and [node.op_type for node in model.graph] == before, why


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { TAKEN = Sin(x) b = Exp(TAKEN) c = Sin(x) y = Add(b, c) }", ()),
        ("g (float[1,4,8,8] x, float[1,4,8,8] TAKEN) => (float[1,4,8,8] y) { b = Exp(TAKEN) c = Sin(x) y = Add(b, c) }",
         ()),
        ("g (float[1,4,8,8] x) => (float[1,4,8,8] y) <float TAKEN = {1}> { a = Exp(x) b = Add(a, TAKEN) c = Sin(x) "
         "y = Add(b, c) }", ()),
        ("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Sin(x) b = Exp(a) c = Sin(x) y = Add(b, c) }", ("b",)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("taken", ["Sin_waits_size", "Sin_waits_size_result", "waits_252_4_0_0", "Sin_waits_reshape"])
def test_new_names_are_nobodys(text: str, changed: tuple[str, ...], taken: str) -> None:
    model = computed_again(text.replace("TAKEN", taken), "c")
    for node in model.graph:
        if node.outputs[0].name in changed:
            node.name = taken
    assert tie(model) == 3
    values = [value.name for node in model.graph for value in node.outputs]
    values += [*model.graph.initializers, *(value.name for value in model.graph.inputs)]
    names = [node.name for node in model.graph if node.name]
    assert len(set(values)) == len(values) and len(set(names)) == len(names)
    onnx.checker.check_model(to_proto(model))


def test_a_value_of_unknown_size_is_not_waited_for() -> None:
    text = """g (float[1,4,8,8] x) => (float[1,4,8,8] y, int64[4,k] n) {
        a = Sin(x) b = Exp(a) n = NonZero(b) c = Sin(x) y = Add(b, c) }"""
    model = computed_again(text, "c")
    assert tie(model) == 3
    (size,) = [node for node in model.graph if node.op_type == "Size"]
    assert size.inputs[0] is not None and size.inputs[0].name == "b", "not the places of what is not zero"


def test_a_tie_has_the_name_of_what_it_ties() -> None:
    model = computed_again("g (float[2] x) => (float[2] y) { a = Sin(x) b = Exp(a) c = Sin(x) y = Add(b, c) }", "c")
    list(model.graph)[2].name = "again"
    tie(model)
    made = [node for node in model.graph if nodes.TIED in node.metadata_props]
    assert [(node.name, node.metadata_props[nodes.TIED], node.outputs[0].name) for node in made] == [
        (f"again_waits_{kind}", "again", f"again_waits_{kind}_result") for kind in ("size", "sub", "reshape")
    ]

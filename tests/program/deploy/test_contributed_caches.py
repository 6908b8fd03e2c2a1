"""Caches of ONNX Runtime's own attentions, and of TensorScatter: in place, as those of plain exports are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import graphopt
from graphopt.program.deploy.compiled import Compiled
from kernels.templates.elementwise import Elementwise

HEADS, GROUPS, SIZE, MOST, WIDTH = 4, 2, 16, 15, 64
Arrays = Mapping[str, np.ndarray]


def _model(node: onnx.NodeProto, old: str, new: str, groups: int, extra: Sequence[onnx.ValueInfoProto]) -> bytes:
    """A step with a node that reads q, k and v, products of x, and caches of `old` rows, and gives ones of `new`."""
    generator, kinds = np.random.default_rng(0), {"q": HEADS, "k": groups, "v": groups}
    kept = {f"w{kind}": generator.standard_normal((WIDTH, count * SIZE)).astype(np.float32) / 8
            for kind, count in kinds.items()}  # fmt: skip
    kept |= {name: generator.standard_normal((MOST + 1, SIZE // 2)).astype(np.float32) for name in ("cos", "sin")}
    kept |= {"one": np.array([1]), "number": np.array(1)}

    def of(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    before = [helper.make_node("MatMul", ["x", f"w{kind}"], [kind]) for kind in kinds]
    if "lengths" in node.input:
        before += [helper.make_node("ReduceSum", ["mask", "one"], ["seen"], keepdims=0),
                   helper.make_node("Sub", ["seen", "one"], ["last"]),
                   helper.make_node("Cast", ["last"], ["lengths"], to=onnx.TensorProto.INT32),
                   helper.make_node("Shape", ["mask"], ["dims"]),
                   helper.make_node("Gather", ["dims", "number"], ["whole"]),
                   helper.make_node("Cast", ["whole"], ["total"], to=onnx.TensorProto.INT32)]  # fmt: skip
    caches = {name: (1, groups, rows, SIZE) for name, rows in
              (("past_key", old), ("past_value", old), ("present_key", new), ("present_value", new))}  # fmt: skip
    names = {*node.input, *(name for one in before for name in one.input)}
    graph = helper.make_graph(
        [*before, node], "step",
        [of("x", 1, 1, WIDTH), *extra, *(of(name, *dims) for name, dims in caches.items() if "past" in name)],
        [of("y", 1, 1, WIDTH), *(of(name, *dims) for name, dims in caches.items() if "present" in name)],
        [numpy_helper.from_array(array, name) for name, array in kept.items() if name in names],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def _grouped(old: str, new: str, mask: str) -> bytes:
    inputs = ["q", "k", "v", "past_key", "past_value", "lengths", "total", "cos", "sin"]
    node = helper.make_node("GroupQueryAttention", inputs, ["y", "present_key", "present_value"],
                            domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1)  # fmt: skip
    seen = helper.make_tensor_value_info("mask", onnx.TensorProto.INT64, [1, mask])
    return _model(node, old, new, GROUPS, [seen])


def _of_many_heads() -> bytes:
    inputs = ["q", "k", "v", "", "", "", "past_key", "past_value"]
    node = helper.make_node("MultiHeadAttention", inputs, ["y", "present_key", "present_value"],
                            domain="com.microsoft", num_heads=HEADS)  # fmt: skip
    return _model(node, "past", "past + 1", HEADS, [])


def _kernels_on_caches(step: Compiled) -> set[str]:
    """The kinds of kernels that write or read the memory of a cache, by the names that templates give them."""
    outputs = {at for at, one in enumerate(step.program.outputs) if one.name.startswith("present")}
    found = {run.kernel for run in step.linked.listing.runs
             if any(one.space == "output" and one.argument in outputs for one in run.operands)}  # fmt: skip
    return {name.rsplit("_", 1)[0] for name in found}


def _decoded(step: Compiled, model: bytes, groups: int, first: int, more: Sequence[Arrays]) -> None:
    """Steps from caches of `first` rows beside ONNX Runtime's; each cache stays where it is."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    caches: dict[str, np.ndarray] = {
        name: np.zeros((1, groups, first, SIZE), np.float32) for name in ("past_key", "past_value")
    }
    theirs, memory = caches, None
    generator = np.random.default_rng(1)
    for given in more:
        x = generator.standard_normal((1, 1, WIDTH)).astype(np.float32)
        made = step(x=x, **given, **caches)
        wanted = dict(zip(names, session.run(None, {"x": x, **given, **theirs}), strict=True))
        for name in names:
            np.testing.assert_allclose(made[name], wanted[name], rtol=1e-5, atol=1e-6)
        caches, theirs = ({name: one[name.replace("past", "present")] for name in caches} for one in (made, wanted))
        assert memory in (None, caches["past_key"].ctypes.data), "it stays where it is"
        memory = caches["past_key"].ctypes.data


@pytest.mark.parametrize("names", [("past", "past + 1", "past + 1"), ("past", "total", "total")])
def test_caches_of_groups_grow_where_they_lie(names: tuple[str, str, str]) -> None:
    model = _grouped(*names)
    dims: dict[str, tuple[int, int] | str] = {"past": (0, MOST)}
    if "total" in names:
        dims["total"] = "past + 1"
    step = graphopt.compile(model, dims=dims, caches=True, threads=1)
    assert _kernels_on_caches(step) == {"routine", "attention"}, "new rows are written, and all are read: no copy"
    _decoded(step, model, GROUPS, 0, [{"mask": np.ones((1, rows + 1), np.int64)} for rows in range(6)])


def test_caches_of_groups_in_a_buffer_of_all_rows() -> None:
    """As long before a step as behind it: the mask says how many rows count."""
    model = _grouped("rows", "rows", "seen")
    step = graphopt.compile(model, dims={"rows": (2, MOST), "seen": "rows"}, caches=True, threads=1)
    assert _kernels_on_caches(step) == {"routine", "attention"}
    masks = [np.array([[1] * count + [0] * (9 - count)]) for count in (1, 2, 3, 4)]
    _decoded(step, model, GROUPS, 9, [{"mask": one} for one in masks])


def test_caches_of_many_heads_grow_where_they_lie() -> None:
    model = _of_many_heads()
    step = graphopt.compile(model, dims={"past": (0, MOST)}, caches=True, threads=1)
    assert _kernels_on_caches(step) <= {"elementwise", "product", "attention"}, "the new row is stored, no other is"
    _decoded(step, model, HEADS, 0, [{}] * 6)
    written = {
        name: problem for name, (_, problem) in step.lowered.problems.items() if isinstance(problem, Elementwise)
    }
    on_caches = [one.kernel for one in step.linked.listing.runs
                 if one.kernel in written and any(place.space == "output" for place in one.operands)]  # fmt: skip
    assert all(written[name].elements <= WIDTH for name in on_caches), "no elementwise kernel goes over a cache"


def test_caches_of_a_decoder_in_a_buffer_of_all_rows() -> None:
    """What stands behind the rows that count stays as it is."""
    inputs = ["q", "k", "v", "", "", "past_key", "past_value", "count"]
    node = helper.make_node("DecoderMaskedMultiHeadAttention", inputs, ["y", "present_key", "present_value"],
                            domain="com.microsoft", num_heads=HEADS, past_present_share_buffer=1)  # fmt: skip
    model = _model(node, "rows", "rows", HEADS, [helper.make_tensor_value_info("count", onnx.TensorProto.INT32, [1])])
    given = [{"count": np.array([rows], np.int32)} for rows in range(4)]
    feed = {"x": np.zeros((1, 1, WIDTH), np.float32), **given[2]}
    feed |= {name: np.zeros((1, HEADS, 9, SIZE), np.float32) for name in ("past_key", "past_value")}
    step = graphopt.compile(model, dims={"rows": (2, MOST)}, caches=True, threads=1, feeds=[feed])
    assert _kernels_on_caches(step) == {"routine", "attention"}
    _decoded(step, model, HEADS, 9, given)

"""What an engine is given holds all of its data: in the main graph, in subgraphs, in functions and in attributes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import graphopt
from graphopt.model.self_contained import self_contained
from tests import support

FEED = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}


def _everywhere() -> onnx.ModelProto:
    """Tensors of an initializer, of branches of an If, of a Constant in a function, and of an attribute."""
    proto = support.model(
        """g (float[2,4] x) => (float[2,4] y) {
            a = Add(x, w)
            t = Constant<value = float[4] {1, 2, 3, 4}>()
            b = Mul(a, t)
            s = ReduceSum<keepdims = 0>(b)
            z = Constant<value = float {0}>()
            p = Greater(s, z)
            i = If(p) <then_branch = then () => (float[2,4] u) {
                c = Constant<value = float[4] {5, 6, 7, 8}>()
                u = Add(b, c)
            }, else_branch = else () => (float[2,4] v) { v = Identity(b) }>
            y = local.shift(i)
        }""",
        w=np.array([1, -1, 2, -2], np.float32),
    )
    body = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.full(4, 3, np.float32))),
        helper.make_node("Add", ["fx", "k"], ["fy"]),
    ]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("local", "shift", ["fx"], ["fy"], body, opsets))
    proto.opset_import.append(helper.make_opsetid("local", 1))
    return proto


def _put_outside(proto: onnx.ModelProto, folder: Path) -> Path:
    """Write the model with every tensor of four numbers in a file beside it, those of functions too."""
    data = bytearray()

    def move(tensor: onnx.TensorProto) -> None:
        values = numpy_helper.to_array(tensor)
        if values.size != 4:
            return
        place = {"location": "m.data", "offset": str(len(data)), "length": str(values.nbytes)}
        data.extend(values.tobytes())
        for kept in ("raw_data", "float_data"):
            tensor.ClearField(kept)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in place.items():
            tensor.external_data.add(key=key, value=value)

    def walk(nodes: list[onnx.NodeProto]) -> None:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    move(attribute.t)
                walk(list(attribute.g.node))

    for tensor in proto.graph.initializer:
        move(tensor)
    walk(list(proto.graph.node))
    walk([node for function in proto.functions for node in function.node])
    (folder / "m.data").write_bytes(bytes(data))
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_tensors_of_every_place_are_brought_inside(tmp_path: Path) -> None:
    expected = support.session(_everywhere()).run(None, FEED)[0]
    path = _put_outside(_everywhere(), tmp_path)
    given = self_contained(graphopt.load(path))

    assert given.handed == {}
    assert b"m.data" not in given.proto.SerializeToString()
    np.testing.assert_array_equal(support.session(given.proto).run(None, FEED)[0], expected)


def test_large_initializers_are_handed_over_and_the_model_is_not_changed(tmp_path: Path) -> None:
    model = graphopt.load(_put_outside(_everywhere(), tmp_path))
    before = model.graph.initializers["w"].const_value
    given = self_contained(model, handed_from=16)

    assert set(given.handed) == {"w"}
    assert b"m.data" not in given.proto.SerializeToString()
    assert model.graph.initializers["w"].const_value is before


def test_strings_and_packed_types_stay_inside() -> None:
    proto = support.model(
        """g (int64[1] i) => (string[1] y, int8[1] n) {
            y = Gather(words, i)
            l = Cast<to = 3>(small)
            n = Gather(l, i)
        }""",
        opset=21,
        ir_version=10,
    )
    proto.graph.initializer.append(helper.make_tensor("words", onnx.TensorProto.STRING, [2], [b"a", b"b"]))
    proto.graph.initializer.append(helper.make_tensor("small", onnx.TensorProto.INT4, [4], [1, -2, 3, -4]))
    given = self_contained(graphopt.load(proto), handed_from=0)

    assert given.handed == {}
    words, small = support.session(given.proto).run(None, {"i": np.array([1])})
    assert list(words) == ["b"] and list(small) == [-2]


def test_what_python_gives_as_a_proto_holds_its_data(tmp_path: Path) -> None:
    path = _put_outside(_everywhere(), tmp_path)
    for proto in (graphopt.optimize(path).to_proto(), graphopt.simplify(path)[0]):
        np.testing.assert_array_equal(
            support.session(proto).run(None, FEED)[0], support.session(_everywhere()).run(None, FEED)[0]
        )


def _wide() -> onnx.ModelProto:
    """A MatMul whose weight is large, an Add and a Mul whose weights are a few kilobytes, and a Clip at one number."""
    rng = np.random.default_rng(0)
    return support.model(
        """g (float[2,900] x) => (float[2,900] y) {
            a = MatMul(x, w)
            b = Add(a, v)
            c = Transpose<perm = [1, 0]>(b)
            d = Transpose<perm = [1, 0]>(c)
            e = Mul(d, u)
            y = Clip(e, low)
        }""",
        low=np.array(-1.5, np.float32),
        w=rng.standard_normal((900, 900)).astype(np.float32) / 30,
        v=rng.standard_normal(900).astype(np.float32),
        u=rng.standard_normal(900).astype(np.float32),
    )


@pytest.mark.parametrize("threshold", [0, 1024, 4096, 1 << 20])
def test_every_flow_takes_a_model_with_data_beside_it(threshold: int, tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(_wide(), path, save_as_external_data=True, location="m.onnx.data", size_threshold=threshold)
    feed = {"x": np.random.default_rng(1).standard_normal((2, 900)).astype(np.float32)}
    expected = support.session(_wide()).run(None, feed)[0]

    result = graphopt.optimize(path)
    assert result.verification.status == "verified"
    result.save(out)
    assert graphopt.verify(path, out).passed
    assert graphopt.optimize(path, memory_budget=40_000).verification.status == "verified"
    np.testing.assert_allclose(graphopt.compile(path).run(None, feed)[0], expected, rtol=1e-4, atol=1e-4)
    assert graphopt.memory(path).record.weights == graphopt.memory(_wide()).record.weights
    scheduled = [graphopt.schedule(source, device="cpu:2").record.regions for source in (path, _wide())]
    assert scheduled[0] == scheduled[1]
    graphopt.optimize(path).save(path, in_place=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-4, atol=1e-4)

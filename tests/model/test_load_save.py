"""What goes in comes out: all forms of input, external data, old formats; and no file is harmed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphopt
from graphopt.errors import ModelError, SaveError
from graphopt.model import save
from graphopt.model.load import Source
from tests import support

TEXT = """g (float[2,64] x) => (float[2,64] y) {
    a = Identity(x)
    m = MatMul(a, w)
    r = Relu(m)
    y = MatMul(r, v)
}"""


def _weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal((64, 64)).astype(np.float32) for name in ("w", "v")}


def _model() -> onnx.ModelProto:
    return support.model(TEXT, 17, 8, **_weights())


def _save_external(folder: Path, location: str = "weights.bin") -> Path:
    path = folder / "in.onnx"
    onnx.save(_model(), path, save_as_external_data=True, location=location, size_threshold=0)
    return path


def _outputs(model: onnx.ModelProto) -> np.ndarray:
    result: np.ndarray = support.session(model).run(None, support.feeds(model, {}))[0]
    return result


@pytest.mark.parametrize("form", ["path", "text", "bytes", "proto", "ir"])
def test_every_form_of_input_gives_the_same(form: str, tmp_path: Path) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(_model(), path)
    sources: dict[str, Source] = {
        "path": path, "text": str(path), "bytes": path.read_bytes(), "proto": onnx.load(path), "ir": ir.load(path),
    }  # fmt: skip
    result = graphopt.optimize(sources[form])
    assert result.verification.status == "verified"
    assert support.op_types(result.to_proto()) == ["MatMul", "Relu", "MatMul"]
    np.testing.assert_array_equal(_outputs(result.to_proto()), _outputs(_model()))


@pytest.mark.parametrize("form", ["proto", "ir"])
def test_the_input_object_is_left_alone(form: str) -> None:
    proto = _model()
    model = ir.from_proto(proto)
    before = proto.SerializeToString(deterministic=True), ir.to_proto(model).SerializeToString(deterministic=True)
    graphopt.optimize(proto if form == "proto" else model)
    after = proto.SerializeToString(deterministic=True), ir.to_proto(model).SerializeToString(deterministic=True)
    assert after == before


def test_the_same_input_gives_the_same_bytes() -> None:
    first, second = (graphopt.optimize(_model()).to_proto().SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_external_data_stays_external_and_the_output_stands_alone(tmp_path: Path) -> None:
    """Written to another folder, then the input is removed: the output still runs."""
    (tmp_path / "other").mkdir()
    source = _save_external(tmp_path)
    data = (tmp_path / "weights.bin").read_bytes()
    output = tmp_path / "other" / "out.onnx"
    graphopt.optimize(source).save(output)
    assert (tmp_path / "weights.bin").read_bytes() == data
    assert {path.name for path in output.parent.iterdir()} == {"out.onnx", "out.onnx.data"}
    kept = onnx.load(output, load_external_data=False).graph.initializer
    assert all(tensor.data_location == TensorProto.EXTERNAL for tensor in kept)
    source.unlink()
    (tmp_path / "weights.bin").unlink()
    np.testing.assert_array_equal(_outputs(onnx.load(output)), _outputs(_model()))


def test_the_data_of_the_input_are_never_overwritten(tmp_path: Path) -> None:
    """The input keeps its data where the output would like to put its own."""
    source = _save_external(tmp_path, "out.onnx.data")
    data = (tmp_path / "out.onnx.data").read_bytes()
    graphopt.optimize(source).save(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").read_bytes() == data
    (other,) = {path.name for path in tmp_path.iterdir()} - {"in.onnx", "out.onnx", "out.onnx.data"}
    assert re.fullmatch(r"out\.onnx\.[0-9a-f]{8}\.data", other), "a name that no file had"
    np.testing.assert_array_equal(_outputs(onnx.load(tmp_path / "out.onnx")), _outputs(_model()))
    np.testing.assert_array_equal(_outputs(onnx.load(source)), _outputs(_model()))


@pytest.mark.parametrize("location", ["weights.bin", "in.onnx.data"])
def test_in_place_with_external_data(location: str, tmp_path: Path) -> None:
    """The new data get a new name, and the old ones go with the model that named them."""
    source = _save_external(tmp_path, location)
    result = graphopt.optimize(source)
    with pytest.raises(SaveError, match=r"is the input itself; choose another output or pass in_place=True\."):
        result.save(source)
    result.save(source, in_place=True)
    assert support.op_types(onnx.load(source)) == ["MatMul", "Relu", "MatMul"]
    np.testing.assert_array_equal(_outputs(onnx.load(source)), _outputs(_model()))
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == 2 and location not in names


def test_data_that_two_models_share_stay_when_one_is_replaced(tmp_path: Path) -> None:
    source = _save_external(tmp_path)
    (tmp_path / "twin.onnx").write_bytes(source.read_bytes())
    graphopt.optimize(source).save(source, in_place=True)
    assert {path.name for path in tmp_path.iterdir()} == {"in.onnx", "in.onnx.data", "twin.onnx", "weights.bin"}
    for name in ("in.onnx", "twin.onnx"):
        np.testing.assert_array_equal(_outputs(onnx.load(tmp_path / name)), _outputs(_model()))


def test_data_in_a_folder_of_their_own_stay(tmp_path: Path) -> None:
    """Others may read them there; nobody looks for them."""
    (tmp_path / "data").mkdir()
    source = _save_external(tmp_path, "data/weights.bin")
    graphopt.optimize(source).save(source, in_place=True)
    assert (tmp_path / "data" / "weights.bin").exists()
    np.testing.assert_array_equal(_outputs(onnx.load(source)), _outputs(_model()))


def test_the_data_of_a_replaced_output_go_with_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    output = tmp_path / "other" / "out.onnx"
    result = graphopt.optimize(_save_external(tmp_path))
    for _ in range(3):
        result.save(output)
        assert len(list(output.parent.iterdir())) == 2
        np.testing.assert_array_equal(_outputs(onnx.load(output)), _outputs(_model()))
    graphopt.optimize(_model()).save(output)
    assert [path.name for path in output.parent.iterdir()] == ["out.onnx"]


def test_the_data_of_the_input_are_no_output(tmp_path: Path) -> None:
    source = _save_external(tmp_path)
    before = (tmp_path / "weights.bin").read_bytes()
    with pytest.raises(SaveError, match=r"weights.bin' holds data of the input; choose another output\."):
        graphopt.optimize(source).save(tmp_path / "weights.bin")
    assert (tmp_path / "weights.bin").read_bytes() == before


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Path.unlink, "No such file or directory"),
        (lambda path: os.truncate(path, 20_000), "is shorter than expected"),
    ],
)
def test_data_that_cannot_be_read_any_more_are_a_sentence(
    fault: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    """Between loading and saving somebody does this to the file."""
    source = _save_external(tmp_path)
    result = graphopt.optimize(source, verify=False)
    fault(tmp_path / "weights.bin")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        SaveError, match=rf"^tensor '[wv]' cannot be read from '.*weights.bin': .*{message}.*; put a plain"
    ):
        result.save(tmp_path / "out.onnx")
    assert sorted(tmp_path.iterdir()) == before


def test_a_model_too_large_for_one_file_gets_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real limit is that of protobuf, 2 GB; here it is 20 kB."""
    monkeypatch.setattr(save, "SINGLE_FILE_LIMIT", 20_000)
    graphopt.optimize(_model()).save(tmp_path / "out.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"out.onnx", "out.onnx.data"}
    np.testing.assert_array_equal(_outputs(onnx.load(tmp_path / "out.onnx")), _outputs(_model()))


def test_bytes_with_external_data_are_refused(tmp_path: Path) -> None:
    data = _save_external(tmp_path).read_bytes()
    with pytest.raises(ModelError, match=r"was not given as a path; give the path of the \.onnx file instead"):
        graphopt.optimize(data)


def test_ir_version_3_keeps_its_signature() -> None:
    """Before IR version 4 every initializer is an input too, and stays one."""
    proto = support.model(
        "g (float[2] x, float[2] w) => (float[2] y) { a = Identity(x) y = Add(a, w) }", 8, 3,
        w=np.array([1, 2], np.float32),
    )  # fmt: skip
    result = graphopt.optimize(proto)
    optimized = result.to_proto()
    assert result.signature_changes == ()
    assert [value.name for value in optimized.graph.input] == ["x", "w"]
    assert support.op_types(optimized) == ["Add"]
    onnx.checker.check_model(optimized)


def test_a_sparse_initializer_is_read() -> None:
    """Two of four numbers are given; the dense tensor of the same name means the same."""
    proto = support.model("g (float[4] x) => (float[4] y) { a = Identity(x) y = Add(a, s) }")
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "s")
    indices = numpy_helper.from_array(np.array([1, 3], np.int64), "s_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    optimized = graphopt.optimize(proto).to_proto()
    (found,) = support.session(optimized).run(None, {"x": np.zeros(4, np.float32)})
    np.testing.assert_array_equal(found, [0, 5, 0, 7])


def test_nodes_in_any_order_are_accepted() -> None:
    proto = _model()
    shuffled = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(shuffled)
    result = graphopt.optimize(proto)
    assert support.op_types(result.to_proto()) == ["MatMul", "Relu", "MatMul"]
    onnx.checker.check_model(result.to_proto())


def test_external_data_of_a_constant_in_a_function_travels_with_the_output(tmp_path: Path) -> None:
    """A function has no initializers, so the tensor sits in an attribute."""
    (tmp_path / "other").mkdir()
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[512] x) => (float[512] y) { a = local.f(x) y = local.f(a) }
        <opset_import: ["" : 17], domain: "local">
        f (x) => (y) { c = Constant<value = float[1] {0}>() y = Add(x, c) }"""
    )
    tensor = proto.functions[0].node[0].attribute[0].t
    data = np.arange(512, dtype=np.float32)
    tensor.CopyFrom(TensorProto(data_type=TensorProto.FLOAT, dims=[512], data_location=TensorProto.EXTERNAL))
    for key, value in (("location", "c.bin"), ("offset", "0"), ("length", "2048")):
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "c.bin").write_bytes(data.tobytes())
    (tmp_path / "in.onnx").write_bytes(proto.SerializeToString())
    output = tmp_path / "other" / "out.onnx"
    graphopt.optimize(tmp_path / "in.onnx", verify=False).save(output)
    (tmp_path / "c.bin").unlink()
    (found,) = support.session(onnx.load(output)).run(None, {"x": np.zeros(512, np.float32)})
    np.testing.assert_array_equal(found, 2 * data)


def test_many_tensors_in_one_file_share_its_map(tmp_path: Path) -> None:
    source = _save_external(tmp_path)
    proto = onnx.load(source, load_external_data=False)
    first = proto.graph.initializer[0]
    for number in range(50):
        proto.graph.initializer.add().CopyFrom(first)
        proto.graph.initializer[-1].name = f"again{number}"
    source.write_bytes(proto.SerializeToString())
    before = len(os.listdir("/proc/self/fd"))
    model = graphopt.load(source)
    arrays = [value.const_value.numpy() for value in model.graph.initializers.values()]
    assert len(arrays) > 50 and len(os.listdir("/proc/self/fd")) <= before + 1
    np.testing.assert_array_equal(arrays[0], arrays[-1])


def test_a_data_file_with_a_second_name_is_read_and_saved(tmp_path: Path) -> None:
    source = _save_external(tmp_path)
    os.link(tmp_path / "weights.bin", tmp_path / "backup.bin")
    graphopt.optimize(source).save(tmp_path / "out.onnx")
    assert graphopt.verify(source, tmp_path / "out.onnx").passed


def test_packed_external_tensors_are_unpacked(tmp_path: Path) -> None:
    proto = support.model("g (int64[1] i) => (int8[1] y) { l = Cast<to = 3>(w) y = Gather(l, i) }", 21, 10)
    proto.graph.initializer.append(helper.make_tensor("w", onnx.TensorProto.INT4, [4], [1, -2, 3, -4]))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="d", size_threshold=0)
    tensor = graphopt.load(tmp_path / "m.onnx").graph.initializers["w"].const_value
    assert tensor is not None and [int(one) for one in tensor.numpy()] == [1, -2, 3, -4]


def test_a_dim_of_minus_one_is_unknown_and_can_be_fixed() -> None:
    proto = support.model("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    shape = graphopt.load(proto).graph.inputs[0].shape
    assert shape is not None and shape[0] == ir.SymbolicDim(None) and shape[1] == 3
    result = graphopt.optimize(proto, shapes={"x": (5, 3)})
    assert result.verification.status == "verified"
    assert [dim.dim_value for dim in result.to_proto().graph.output[0].type.tensor_type.shape.dim] == [5, 3]
    program = graphopt.compile(proto, shapes={"x": (5, 3)})
    assert program.run(None, {"x": np.ones((5, 3), np.float32)})[0].shape == (5, 3)


def test_a_question_mark_names_no_dim_and_is_not_one_size() -> None:
    """Height and width are both "?" where PaddlePaddle's exporter knows neither."""
    proto = support.model("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = "?"
    shape = graphopt.load(proto).graph.inputs[0].shape
    assert shape is not None and list(shape) == [ir.SymbolicDim(None)] * 2
    for program in (
        graphopt.compile(proto, shapes={"x": (5, 7)}), graphopt.compile(proto, dims={"x:0": 5, "x:1": 7}),
    ):  # fmt: skip
        assert program.run(None, {"x": np.ones((5, 7), np.float32)})[0].shape == (5, 7)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is a folder; give the \.onnx file inside it"):
        graphopt.load(tmp_path)

"""Which data files the models of a folder name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from graphopt.files import references
from graphopt.files.references import is_named, named_files

TEXT = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[1] x, bool c) => (float[1] y)
<float[1] w = {0}>
{
    k = Constant<value = float[1] {0}>()
    a = Add(x, w)
    b = local.f(a)
    y = If(c) <
        then_branch = t () => (float[1] u) <float[1] v = {0}> { u = Add(b, v) },
        else_branch = e () => (float[1] u) { u = Add(b, k) }
    >
}
<opset_import: ["" : 17], domain: "local">
f (x) => (y) { c = Constant<value = float[1] {0}>() y = Add(x, c) }"""

PLACES: dict[str, Callable[[onnx.ModelProto], TensorProto]] = {
    "initializer": lambda model: model.graph.initializer[0],
    "attribute": lambda model: model.graph.node[0].attribute[0].t,
    "subgraph": lambda model: model.graph.node[3].attribute[0].g.initializer[0],
    "function": lambda model: model.functions[0].node[0].attribute[0].t,
}


def _model(place: str = "initializer", location: str = "w.bin") -> bytes:
    model = onnx.parser.parse_model(TEXT)
    tensor = PLACES[place](model)
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_of_any_part_of_a_model_names_its_file(place: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(_model(place))
    assert named_files(tmp_path / "m.onnx") == {"w.bin"} and is_named(tmp_path, "w.bin")
    assert not is_named(tmp_path, "bin") and not is_named(tmp_path, "v.bin")


def test_other_spellings_mean_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(_model(location="./sub/../w.bin"))
    assert named_files(tmp_path / "m.onnx") == {"w.bin"} and is_named(tmp_path, "w.bin")


@pytest.mark.parametrize("content", [b"", b"location", b"\xff\xff location of nothing", None])
def test_what_is_no_model_names_nothing(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "m.onnx").write_bytes(content)
    assert named_files(tmp_path / "m.onnx") == frozenset()


@pytest.mark.parametrize(
    ("name", "content", "counts"),
    [
        ("model.pb", _model(), True),
        ("broken.onnx", _model()[:-1], True),
        ("model.json", b'{"key": "location", "value": "w.bin"}', True),
        ("notes.txt", b"w.bin holds the weights", False),
        ("w.bin", _model(), False),
    ],
)
def test_files_beside_the_data(name: str, content: bytes, counts: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert is_named(tmp_path, "w.bin") is counts


def test_only_files_that_end_in_onnx_are_read_whatever_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "MOST_BYTES", 10)
    (tmp_path / "shard.bin").write_bytes(_model())
    assert not is_named(tmp_path, "w.bin")
    (tmp_path / "m.onnx").write_bytes(_model())
    assert is_named(tmp_path, "w.bin")


@pytest.mark.parametrize("block", [1, 7, 64])
def test_names_are_found_across_blocks(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "BLOCK", block)
    (tmp_path / "m.onnx").write_bytes(_model())
    assert named_files(tmp_path / "m.onnx") == {"w.bin"} and is_named(tmp_path, "w.bin")


@pytest.mark.parametrize(("error", "counts"), [(PermissionError, True), (FileNotFoundError, False)])
def test_a_file_that_cannot_be_read_counts(
    error: type[OSError], counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.onnx").write_bytes(b"")

    def refused(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(Path, "open", refused)
    assert is_named(tmp_path, "w.bin") is counts

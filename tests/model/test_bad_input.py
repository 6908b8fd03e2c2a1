"""Bad input: one sentence that names the file, the fault and the way out, exit status 1, and no file left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphopt import cli
from tests import support

TEXT = "g (float[n,256] x) => (float[n,4] y) { a = Identity(x) y = MatMul(a, w) }"


def _model() -> onnx.ModelProto:
    return support.model(TEXT, w=np.ones((256, 4), np.float32))


def _write(folder: Path, model: onnx.ModelProto) -> None:
    (folder / "in.onnx").write_bytes(model.SerializeToString())


def _external(folder: Path, **entries: str) -> None:
    """A model whose weight lies in a file, 4096 bytes from its start unless `entries` say otherwise."""
    model = _model()
    tensor = model.graph.initializer[0]
    (folder / "w.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": "0", "length": "4096", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    _write(folder, model)


def _no_protobuf(folder: Path) -> None:
    (folder / "in.onnx").write_bytes(b"\xff\xff\xff this is a text, not a model")


def _truncated(folder: Path) -> None:
    (folder / "in.onnx").write_bytes(_model().SerializeToString()[:-3000])


def _empty(folder: Path) -> None:
    (folder / "in.onnx").write_bytes(b"")


def _no_graph(folder: Path) -> None:
    _write(folder, onnx.ModelProto(ir_version=8))


def _missing_data(folder: Path) -> None:
    _external(folder)
    (folder / "w.bin").unlink()


def _short_data(folder: Path) -> None:
    _external(folder)
    (folder / "w.bin").write_bytes(b"\0" * 100)


def _short_entry(folder: Path) -> None:
    _external(folder, length="8")


def _cyclic(folder: Path) -> None:
    _write(folder, support.model("g (float[2] x) => (float[2] y) { a = Add(x, b) b = Neg(a) y = Relu(b) }"))


def _undefined(folder: Path) -> None:
    _write(folder, support.model("g (float[2] x) => (float[2] y) { a = Identity(x) y = Add(a, ghost) }"))


def _uncomputed(folder: Path) -> None:
    model = support.model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.output[0].name = "other"
    _write(folder, model)


def _new_opset(folder: Path) -> None:
    model = _model()
    model.opset_import[0].version = 999
    _write(folder, model)


def _escape(location: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder.parent / "secret.bin").write_bytes(b"\0" * 4096)
        _external(folder, location=location)

    return write


def _linked_outside(folder: Path) -> None:
    (folder.parent / "secret.bin").write_bytes(b"\0" * 4096)
    _external(folder, location="link.bin")
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")


def _linked_in_a_ring(folder: Path) -> None:
    _external(folder, location="ring.bin")
    (folder / "ring.bin").symlink_to("ring.bin")


FAULTS: tuple[tuple[Callable[[Path], None], str], ...] = (
    (lambda folder: None, "'in.onnx' does not exist; check the path."),
    (_empty, "'in.onnx' is empty (0 bytes); export or download the model again."),
    (
        _no_protobuf,
        "'in.onnx' is not an ONNX protobuf, or is cut short (31 bytes read); export or download the model again.",
    ),
    (
        _truncated,
        "'in.onnx' is not an ONNX protobuf, or is cut short (1,212 bytes read); export or download the model again.",
    ),
    (_no_graph, "'in.onnx' holds no graph, so it is not an ONNX model; export or download the model again."),
    (_missing_data, "'in.onnx' keeps tensor 'w' in 'w.bin', which does not exist; put the data file beside the model."),
    (
        _short_data,
        "'w.bin' has 100 bytes, but tensor 'w' needs it to have 4,096; the file is cut short, copy it again.",
    ),
    (_short_entry, "'in.onnx': tensor 'w' needs 4,096 bytes but its entry names 8; export the model again."),
    *(
        (
            fault,
            f"'in.onnx' keeps tensor 'w' in '{location}', which lies outside the model's folder; move the data beside "
            "the model and correct its location.",
        )
        for fault, location in (
            (_escape("../secret.bin"), "../secret.bin"),
            (_escape("/etc/passwd"), "/etc/passwd"),
            (_linked_outside, "link.bin"),
        )
    ),
    (
        lambda folder: _external(folder, location="w" * 300),
        f"'in.onnx' keeps tensor 'w' in '{'w' * 200}', which cannot be looked up: File name too long; correct its "
        "location.",
    ),
    (
        _linked_in_a_ring,
        "'in.onnx' keeps tensor 'w' in 'ring.bin', which cannot be looked up: its links form a ring; correct its "
        "location.",
    ),
    (
        _cyclic,
        "'in.onnx' is cyclic: some node depends on its own result; a graph must be acyclic, export the model again.",
    ),
    (
        _undefined,
        "'in.onnx': node Add 'y' reads 'ghost', which nothing defines; the model was cut or edited wrongly, export it "
        "again.",
    ),
    (_uncomputed, "'in.onnx': output 'other' is not computed by any node; export the model again."),
    (
        _new_opset,
        f"'in.onnx' uses opset 999, but the installed onnx {onnx.__version__} knows opsets up to "
        f"{onnx.defs.onnx_opset_version()}; upgrade onnx or export the model with a lower opset.",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_a_bad_model_is_refused_in_one_sentence(
    fault: Callable[[Path], None],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.chdir(folder)
    fault(folder)
    before = {path.name for path in folder.iterdir()}
    assert cli.run_line(["optimize", "in.onnx", "out.onnx", "--json", "--report", "report.json"]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"error: {message}\n"
    assert json.loads(captured.out)["error"] == message
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shape", "z=1x256"), "there is no input 'z'; there is 'x'."),
        (("--shape", "x=1x2x256"), "input 'x' has 2 dims, but the shape given has 3."),
        (
            ("--shape", "x=1x255"),
            "dim 1 of input 'x' is fixed at 256 in the model, it cannot become 255; free it first: --dim x:1=N.",
        ),
        (("--dim", "m=3"), "there is no dynamic dim 'm'; there is 'n'."),
        (("--shape", "x=2x256", "--dim", "n=3"), "dim 'n'"),
    ],
)
def test_a_shape_that_does_not_fit_the_model_is_refused(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, _model())
    assert cli.run_line(["optimize", "in.onnx", "out.onnx", *options]) == 1
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


@pytest.mark.parametrize("place", ["sub", "branch"])
def test_undefined_names_and_cycles_are_found_inside_subgraphs(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    inner = "a = Add(b, x) b = Neg(a)" if place == "sub" else "b = Neg(ghost)"
    model = support.model(
        f"""g (bool c, float[2] x) => (float[2] y) {{
            y = If(c) <
                then_branch = t () => (float[2] b) {{ {inner} }},
                else_branch = e () => (float[2] d) {{ d = Abs(x) }}
            >
        }}"""
    )
    _write(tmp_path, model)
    assert cli.run_line(["optimize", "in.onnx", "out.onnx"]) == 1
    expected = "is cyclic" if place == "sub" else "reads 'ghost', which nothing defines"
    assert expected in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]


def test_a_custom_operator_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = support.model("g (float[2] x) => (float[2] y) { a = Identity(x) y = com.acme.Foo(a) }")
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    _write(tmp_path, model)
    assert cli.run_line(["optimize", "in.onnx", "out.onnx", "--no-verify"]) == 0
    assert support.op_types(onnx.load("out.onnx")) == ["Foo"]

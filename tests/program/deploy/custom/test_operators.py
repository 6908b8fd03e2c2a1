"""Models as custom operators: an ONNX file and a library, in stock sessions; what is refused, and by which words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import graphopt
from graphopt.cli import run_line
from graphopt.errors import BundleError, NotLowered
from graphopt.model.load import load
from graphopt.program.deploy.custom.operators import Operators, opened, operators_of_whole
from kernels.size import Dim
from kernels.target import host
from tests import support

TOLERANCE = 1e-5  # relative and absolute: a few roundings of float32 products of 8 to 16 terms
W, V, U = (
    np.random.default_rng(seed).standard_normal(dims).astype(np.float32)
    for seed, dims in enumerate(((8, 16), (16, 8), (8, 4)))
)
LAYERS = "g (float[3,8] x) => (float[3,8] y) { p = MatMul(x, w) q = Tanh(p) y = MatMul(q, v) }"
MIDDLE = """g (float[3,8] x) => (float[3,4] y, float[3,8] r) {
    p = MatMul(x, w) q = Relu(p) r = MatMul(q, v) c = LpNormalization(r) s = Tanh(c) t = Mul(s, r) y = MatMul(t, u)
}"""
X = np.random.default_rng(5).standard_normal((3, 8)).astype(np.float32)


def _layers(name: str = "model", seed: int = 0, threads: int = 1) -> graphopt.Compiled:
    w = np.random.default_rng(seed).standard_normal((8, 16)).astype(np.float32)
    return graphopt.compile(support.model(LAYERS, 20, w=w, v=V), form="onnxruntime", name=name, threads=threads)


def _expected(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    found: list[np.ndarray] = support.session(proto).run(None, feeds)
    return found


def _session(folder: Path, name: str, **changes: bytes) -> ort.InferenceSession:
    """The files of a folder, some of which are others."""
    for file, data in changes.items():
        (folder / file.replace("_dot_", ".")).write_bytes(data)
    return opened(folder, name)


def test_a_whole_model_is_one_operator(tmp_path: Path) -> None:
    proto = support.model(LAYERS, 20, w=W, v=V)
    proto.graph.input[0].doc_string = "rows"
    compiled = graphopt.compile(proto, form="onnxruntime", name="layers")
    compiled.save(tmp_path / "out")
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == [
        "layers.onnx", "layers.weights", "liblayers.so", "manifest.json",
    ]  # fmt: skip
    file = onnx.load(tmp_path / "out" / "layers.onnx")
    assert [(node.domain, node.op_type) for node in file.graph.node] == [("graphopt.layers", "layers")]
    assert [one.name for one in (*file.graph.input, *file.graph.output)] == ["x", "y"] and not file.graph.initializer
    session = opened(tmp_path / "out", "layers")
    expected = _expected(proto, {"x": X})
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected[0], rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_array_equal(compiled(x=X)["y"], session.run(["y"], {"x": X})[0])
    assert [(one.name, one.type, one.shape) for one in compiled.get_inputs()] == [("x", "tensor(float)", [3, 8])]
    assert compiled.fallback == () and len(compiled.programs) == 1
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert manifest["schema"] == "graphopt.operators/1" and manifest["programs"][0]["name"] == "layers"
    with pytest.raises(BundleError, match="no program of their own"):
        _ = compiled.linked


@pytest.mark.usefixtures("some_lack_kernels")
def test_what_has_no_kernel_stays_with_onnx_runtime(tmp_path: Path) -> None:
    proto = support.model(MIDDLE, 20, w=W, v=V, u=U)
    compiled = graphopt.compile(proto, form="onnxruntime", name="parts")
    assert compiled.fallback == ("LpNormalization 'c'",) and len(compiled.programs) == 2
    compiled.save(tmp_path / "out")
    file = onnx.load(tmp_path / "out" / "parts.onnx")
    assert [node.op_type for node in file.graph.node] == ["parts_0", "LpNormalization", "parts_2"]
    found = opened(tmp_path / "out", "parts").run(None, {"x": X})
    for got, wanted in zip(found, _expected(proto, {"x": X}), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.usefixtures("some_lack_kernels")
def test_constants_inputs_and_bodies_beside_operators() -> None:
    """A constant and an input that are outputs, a default, a body that reads a value of an operator."""
    proto = support.model(
        """g (float[3,8] x, bool more, float[3,8] d) => (float[3,8] y, float[3,8] same, float[8,4] u) {
            p = MatMul(x, w) q = Tanh(p) r = MatMul(q, v) c = LpNormalization(r) same = Identity(x)
            e = Add(c, d) z = If (more) <
                then_branch = a () => (float[3,8] s) { h = Hardmax(r) s = Add(h, e) },
                else_branch = b () => (float[3,8] t) { t = Identity(e) }>
            k = MatMul(z, w) l = Tanh(k) m = MatMul(l, v) y = Add(m, r)
        }""",
        20, w=W, v=V, u=U, d=X,
    )  # fmt: skip
    compiled = graphopt.compile(proto, form="onnxruntime")
    assert "LpNormalization 'c'" in compiled.fallback and len(compiled.programs) == 2
    for more in (False, True):
        feeds = {"x": X, "more": np.array(more)}
        for got, wanted in zip(compiled.run(None, feeds), _expected(proto, feeds), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def test_outputs_whose_dims_a_run_finds() -> None:
    proto = support.model("g (float[4,5] x) => (int64[2,n] y, float[4,5] z) { y = NonZero(x) z = Relu(x) }", 20)
    compiled = graphopt.compile(proto, form="onnxruntime")
    for x in (np.zeros((4, 5), np.float32), np.eye(4, 5, dtype=np.float32), np.ones((4, 5), np.float32)):
        for got, wanted in zip(compiled.run(None, {"x": x}), _expected(proto, {"x": x}), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("kind, dtype", [("int64", np.int64), ("bool", np.bool_), ("float16", np.float16)])
def test_other_elements_and_no_dims(kind: str, dtype: type[np.generic]) -> None:
    does = "Not" if kind == "bool" else "Neg"
    proto = support.model(
        f"g ({kind} x, {kind}[0,3] e) => ({kind} y, {kind}[0,3] f) {{ y = {does}(x) f = {does}(e) }}", 20
    )
    compiled = graphopt.compile(proto, form="onnxruntime")
    feeds = {"x": np.array(1, dtype), "e": np.zeros((0, 3), dtype)}
    for got, wanted in zip(compiled.run(None, feeds), _expected(proto, feeds), strict=True):
        np.testing.assert_array_equal(got, wanted)
        assert got.shape == wanted.shape and got.dtype == wanted.dtype


def test_eight_threads_on_one_session(tmp_path: Path) -> None:
    """Each run has a context of its own, and the weights of the first."""
    compiled = _layers(threads=2)
    session = compiled.made.session  # type: ignore[union-attr]
    feeds = [np.random.default_rng(seed).standard_normal((3, 8)).astype(np.float32) for seed in range(8)]
    alone = [session.run(None, {"x": x})[0] for x in feeds]

    def many(number: int) -> bool:
        return all(np.array_equal(session.run(None, {"x": feeds[number]})[0], alone[number]) for _ in range(200))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(many, range(8)))


def test_two_sessions_and_two_libraries_in_one_process(tmp_path: Path) -> None:
    first, second = _layers("first", 1), _layers("second", 2)
    for one in (first, second):
        one.save(tmp_path / one.made.name)  # type: ignore[union-attr]
    sessions = [opened(tmp_path / name, name) for name in ("first", "second", "first")]
    answers = [session.run(None, {"x": X})[0] for session in sessions]
    np.testing.assert_array_equal(answers[0], answers[2])
    assert not np.array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[1], second(x=X)["y"])
    del sessions[0]
    np.testing.assert_array_equal(sessions[-1].run(None, {"x": X})[0], answers[0])

    both = ort.SessionOptions()
    for name in ("first", "second"):
        both.register_custom_ops_library(str(tmp_path / name / f"lib{name}.so"))
    for name, answer in (("first", answers[0]), ("second", answers[1])):
        session = ort.InferenceSession(str(tmp_path / name / f"{name}.onnx"), both)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], answer)


def test_the_folder_may_be_moved_linked_and_left(tmp_path: Path) -> None:
    """Weights are looked for beside the library, wherever it lies and whatever the current folder is."""
    _layers("moved").save(tmp_path / "one")
    shutil.move(tmp_path / "one", tmp_path / "two")
    (tmp_path / "link").symlink_to(tmp_path / "two" / "libmoved.so")
    script = """
import os, sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.register_custom_ops_library("./link")
os.chdir("/")
session = ort.InferenceSession(sys.argv[1] + "/two/moved.onnx", options)
print(session.run(None, {"x": np.ones((3, 8), np.float32)})[0].shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "(3, 8)\n", done.stderr


def _files(tmp_path: Path) -> Path:
    _layers("bad").save(tmp_path / "bad")
    return tmp_path / "bad"


def test_weights_that_are_missing_cut_off_or_foreign(tmp_path: Path) -> None:
    folder = _files(tmp_path)
    weights = (folder / "bad.weights").read_bytes()
    with pytest.raises(Exception, match=r"bad\.weights' has 64 bytes instead of \d+: it is cut off"):
        _session(folder, "bad", bad_dot_weights=weights[:64])
    with pytest.raises(Exception, match="the weights are damaged, or another program's: their checksum is"):
        _session(folder, "bad", bad_dot_weights=bytes(len(weights)))
    os.unlink(folder / "bad.weights")
    with pytest.raises(Exception, match=r"bad/bad\.weights' cannot be opened: No such file"):
        _session(folder, "bad")
    assert _session(folder, "bad", bad_dot_weights=weights).run(None, {"x": X})[0].shape == (3, 8)


def test_a_library_beside_another_file(tmp_path: Path) -> None:
    folder = _files(tmp_path)
    other = onnx.load(folder / "bad.onnx")
    other.graph.node[0].attribute[0].s = b"0" * 32
    with pytest.raises(Exception, match="the library of custom operators was compiled with another ONNX file"):
        _session(folder, "bad", bad_dot_onnx=other.SerializeToString())
    other.graph.node[0].attribute[0].s = b"0" * 400
    with pytest.raises(Exception, match="not large enough"):
        _session(folder, "bad", bad_dot_onnx=other.SerializeToString())
    del other.graph.node[0].attribute[:]
    with pytest.raises(Exception, match="program"):
        _session(folder, "bad", bad_dot_onnx=other.SerializeToString())


def test_threads_are_an_attribute(tmp_path: Path) -> None:
    folder = _files(tmp_path)
    file = onnx.load(folder / "bad.onnx")
    threads = next(one for one in file.graph.node[0].attribute if one.name == "threads")
    assert threads.i == 1
    for number in (-1, 2**40):
        threads.i = number
        with pytest.raises(Exception, match="a negative number of threads is given"):
            _session(folder, "bad", bad_dot_onnx=file.SerializeToString())
    threads.i = 2
    _session(folder, "bad", bad_dot_onnx=file.SerializeToString()).run(None, {"x": X})


def test_tensors_of_other_dims_are_refused(tmp_path: Path) -> None:
    """A file whose own dims somebody has freed: the program checks what it is given."""
    folder = _files(tmp_path)
    file = onnx.load(folder / "bad.onnx")
    for value in (*file.graph.input, *file.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    session = _session(folder, "bad", bad_dot_onnx=file.SerializeToString())
    with pytest.raises(Exception, match=r"input 'x' has dim 0 of 4; its shape is \[3, 8\]"):
        session.run(None, {"x": np.ones((4, 8), np.float32)})
    assert session.run(None, {"x": X})[0].shape == (3, 8)


def test_free_dims_are_asked_for() -> None:
    proto = support.model("g (float[n,8] x) => (float[n,16] y) { y = MatMul(x, w) }", 20, w=W)
    with pytest.raises(NotLowered, match=r"give 'n' a value"):
        graphopt.compile(proto, form="onnxruntime")
    assert graphopt.compile(proto, form="onnxruntime", dims={"n": 3})(x=X)["y"].shape == (3, 16)


def test_a_processor_that_this_machine_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = graphopt.compile(support.model(LAYERS, 20, w=W, v=V), form="onnxruntime", target="aarch64")
    assert isinstance(compiled.made, Operators) and "cannot run aarch64" in (compiled.not_compared or "")
    with pytest.raises(graphopt.VerificationError, match="was not compared"):
        compiled.save(tmp_path / "arm")
    compiled.save(tmp_path / "arm", unchecked=True)
    assert (tmp_path / "arm" / "libmodel.so").read_bytes()[18] == 183  # ELF's number of the architecture


def test_the_command_and_what_it_writes_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(support.model(LAYERS, 20, w=W, v=V), tmp_path / "model.onnx")
    line = ["compile", str(tmp_path / "model.onnx"), str(tmp_path / "out"), "--tune", "0", "--machine", "znver4"]
    for form in ("onnxruntime", "bundle", "onnxruntime"):
        assert run_line([*line, "--as", form, "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["regions"] == 2 and record["fallback"] == []
        assert (tmp_path / "out" / "model.onnx").exists() == (form == "onnxruntime")
    (tmp_path / "out" / "model.onnx").write_bytes(b"mine")
    assert run_line([*line, "--as", "onnxruntime"]) != 0
    assert "was changed since the bundle was written" in capsys.readouterr().err


def test_the_same_input_gives_the_same_files() -> None:
    first, second = (_layers().made for _ in range(2))
    assert isinstance(first, Operators) and isinstance(second, Operators)
    assert {name: bytes(data) for name, data in first.files.items()} == {
        name: bytes(data) for name, data in second.files.items()
    }


def test_a_range_of_sizes(tmp_path: Path) -> None:
    """Dims of outputs follow those of inputs; threads of one session may each have another size."""
    proto = support.model(
        """g (float[n,8] x, float[m,8] z) => (float[n,16] y, float[m,16] u) {
            y = MatMul(x, w) v = Relu(z) u = MatMul(v, w)
        }""",
        20, w=W,
    )  # fmt: skip
    compiled = graphopt.compile(proto, form="onnxruntime", name="free", dims={"n": (1, 40), "m": (1, 9)})
    compiled.save(tmp_path / "out")
    session = opened(tmp_path / "out", "free")
    assert [one.shape for one in (*session.get_inputs(), *session.get_outputs())] == [
        ["n", 8], ["m", 8], ["n", 16], ["m", 16],
    ]  # fmt: skip
    plain = support.session(proto)

    def run(n: int) -> None:
        x, z = (np.random.default_rng(n).standard_normal((rows, 8)).astype(np.float32) for rows in (n, 1 + n % 9))
        for got, wanted in zip(session.run(None, {"x": x, "z": z}), plain.run(None, {"x": x, "z": z}), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)

    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(run, range(1, 41)))) == 40
    one = np.ones((1, 8), np.float32)
    with pytest.raises(Exception, match="'n' cannot be 41; the program is made for 1 to 40"):
        session.run(None, {"x": np.ones((41, 8), np.float32), "z": one})
    assert session.run(None, {"x": one, "z": one})[0].shape == (1, 16)


def test_a_size_that_no_input_tells() -> None:
    proto = support.model("g (float[n,8] x) => (float[n,16] y) { y = MatMul(x, w) }", 20, w=W)
    compiled = graphopt.compile(proto, dims={"n": (1, 40)})
    hidden = replace(compiled.linked, listing=replace(compiled.linked.listing, sizes=(Dim("k", 1, 40, 0),)))
    with pytest.raises(BundleError, match="no input has 'k' as a dim of its own"):
        operators_of_whole(load(proto), hidden, host(), 1)


def test_listed_sizes_and_several_levels(tmp_path: Path) -> None:
    """One library for two levels of processors and two sizes; a run's dims say which, and threads may take either."""
    proto = support.model(
        "g (float[m,4] k, float[n,8] x) => (float[n,16] y, float[m,4] u) { y = MatMul(x, w) u = Relu(k) }", 20, w=W,
    )  # fmt: skip
    here = host().architecture.name == "x86_64"
    compiled = graphopt.compile(
        proto, target=("x86-64-v3", "host") if here else ("host",), form="onnxruntime", name="listed",
        dims={"n": [3, 7], "m": [2, 5]},
    )  # fmt: skip
    compiled.save(tmp_path / "out")
    session, plain = opened(tmp_path / "out", "listed"), support.session(proto)

    def run(number: int) -> None:
        rows, others = (3, 7)[number % 2], (2, 5)[number // 2 % 2]
        feeds = {"x": np.full((rows, 8), number, np.float32), "k": np.full((others, 4), -number, np.float32)}
        for got, wanted in zip(session.run(None, feeds), plain.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)

    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(run, range(40)))) == 40
    with pytest.raises(Exception, match="'n' cannot be 4; the program is made for 3, 7"):
        session.run(None, {"x": np.ones((4, 8), np.float32), "k": np.ones((2, 4), np.float32)})

"""Programs as WebAssembly: compared in node, written as a folder, and a page of it in a browser."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.cli import run_line
from graphopt.errors import BundleError, OptionError
from graphopt.program.deploy.web import node
from tests import support
from tests.kernels.test_webassembly import MISSING
from tests.report.browser import opened

pytestmark = pytest.mark.skipif(MISSING, reason="node or ziglang is not installed")
W = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
X = np.random.default_rng(5).standard_normal((3, 8)).astype(np.float32)


def _layers() -> onnx.ModelProto:
    return support.model(
        """g (float[3,8] x, int64[3] i) => (float[3,16] y, int64[3] j) {
            p = MatMul(x, w) y = Gelu(p) j = Add(i, i)
        }""",
        20, w=W,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("web") / "layers"
    compiled = graphopt.compile(_layers(), target="wasm32", name="layers")
    assert compiled.not_compared is None and compiled.not_here == "this machine cannot run wasm32: it is x86_64"
    assert 0 < compiled.max_rel < 1e-6  # it has run, and rounds otherwise
    compiled.save(path)
    return path


def _in_node(folder: Path, lines: str) -> str:
    script = folder.parent / "script.mjs"
    head = f'import {{ Program }} from "{(folder / "layers.mjs").as_uri()}";\n'
    script.write_text(f"{head}const i = new BigInt64Array(3), x = new Float32Array(24);\n{lines}")
    done = subprocess.run([str(shutil.which("node")), str(script)], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def test_the_folder(folder: Path) -> None:
    names = ["index.html", "layers.mjs", "layers.wasm", "layers.weights", "manifest.json"]
    assert sorted(one.name for one in folder.iterdir()) == names
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["program"]["triple"] == "wasm32-unknown-unknown"
    assert "@" not in (folder / "layers.mjs").read_text() + (folder / "index.html").read_text()


def test_a_script_runs_it(folder: Path) -> None:
    script = """
const program = await Program.load();
x.fill(0.5); i.fill(21n);
program.run({ x, i });
x.fill(1);
const { y, j } = program.run({ i, x });
console.log(JSON.stringify([y.dims, Array.from(y.data), Array.from(j.data, Number)]));
"""
    dims, y, j = json.loads(_in_node(folder, script))
    feeds = {"x": np.ones((3, 8), np.float32), "i": np.full(3, 21)}
    expected = support.session(_layers()).run(None, feeds)
    np.testing.assert_allclose(np.array(y).reshape(dims), expected[0], rtol=1e-5, atol=1e-5)  # sums of eight terms
    assert j == [42, 42, 42]


@pytest.mark.parametrize(("call", "said"), [
    ("program.run({ x })", "input 'i' is to be a BigInt64Array."),
    ("program.run({ x: i, i })", "input 'x' is to be a Float32Array."),
    ("program.run({ x: x.subarray(1), i })", "input 'x' has 23 elements; expected are 24: [3,8]."),
    ("program.run({ x, i, z: x })", "there is no input 'z'."),
    ("await Program.from(new Uint8Array(8), new Uint8Array(3))", "3 bytes of weights are given instead of 512."),
    ('await Program.load(new URL("file:///nowhere/"))', "ENOENT: no such file"),
])  # fmt: skip
def test_what_is_refused(folder: Path, call: str, said: str) -> None:
    tried = f"try {{ {call}; }} catch (error) {{ console.log(error.message); }}"
    assert _in_node(folder, f"const program = await Program.load();\n{tried}").startswith(said)


def test_dims_that_a_run_finds_and_inputs_that_hold_dims() -> None:
    proto = support.model("g (float[4,5] x) => (int64[2,n] y, bool[4,5] z) { y = NonZero(x) z = IsNaN(x) }", 20)
    compiled = graphopt.compile(proto, target="wasm32")
    program = node.InNode(compiled.linked.listing, compiled.linked.weights, compiled.target)
    x = np.eye(4, 5, dtype=np.float32)
    for got, wanted in zip(program.run(None, {"x": x}), support.session(proto).run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype == wanted.dtype


def test_what_node_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "MOST_FLOPS", 10)
    compiled = graphopt.compile(_layers(), target="wasm32")
    assert "operations, more than node is asked for" in (compiled.not_compared or "")
    monkeypatch.setattr(node.shutil, "which", lambda name: None)
    assert "node is not installed" in (graphopt.compile(_layers(), target="wasm32").not_compared or "")
    with pytest.raises(OptionError, match="no custom operators of WebAssembly"):
        graphopt.compile(_layers(), target="wasm32", form="onnxruntime")
    free = support.model("g (float[n,8] x) => (float[n,16] y) { y = MatMul(x, w) }", 20, w=W)
    with pytest.raises(OptionError, match="has one size of every dim; give dims numbers"):
        graphopt.compile(free, target="wasm32", dims={"n": (1, 4)})


def test_a_module_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_SCRIPT", "throw new Error('no such thing')")
    with pytest.raises(BundleError, match=r"(?s)the program failed in node: .*no such thing"):
        graphopt.compile(_layers(), target="wasm32")


def test_the_command_writes_a_folder_over_a_bundle(tmp_path: Path) -> None:
    onnx.save(_layers(), tmp_path / "layers.onnx")
    line = ["compile", str(tmp_path / "layers.onnx"), str(tmp_path / "out"), "--tune", "0", "--machine", "znver4"]
    assert run_line(line) == 0 and run_line([*line, "--target", "wasm32", "--name", "layers"]) == 0
    assert not list((tmp_path / "out").glob("*.so")) and (tmp_path / "out" / "layers.wasm").exists()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder on this machine alone."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_page_runs_the_model_and_shows_its_time(folder: Path) -> None:
    with served(folder) as address, opened(folder / "index.html", at=f"{address}/index.html") as seen:
        page = seen.page
        page.wait_for_selector("html[data-runs='1']", state="attached")
        assert page.locator("#time").inner_text().endswith(" ms")
        cells = page.locator("#tensors tr").all_inner_texts()
        assert [cell.split("\t")[:2] for cell in cells] == [
            ["x", "f32 [3, 8]"], ["i", "i64 [3]"], ["y", "f32 [3, 16]"], ["j", "i64 [3]"],
        ]  # fmt: skip
        page.get_by_role("button", name="Run again").click()
        page.wait_for_selector("html[data-runs='2']", state="attached")
        found = page.evaluate(
            """async (x) => {
                const { Program } = await import("./layers.mjs"), program = await Program.load();
                const feeds = { x: Float32Array.from(x), i: new BigInt64Array(3) };
                return Array.from(program.run(feeds).y.data);
            }""",
            X.reshape(-1).tolist(),
        )
        assert not seen.errors and all(url.startswith(address) for url in seen.asked_for)
    expected = support.session(_layers()).run(["y"], {"x": X, "i": np.zeros(3, np.int64)})[0]
    np.testing.assert_allclose(np.array(found).reshape(3, 16), expected, rtol=1e-5, atol=1e-5)


def test_a_page_that_is_not_served_says_so(folder: Path) -> None:
    with opened(folder / "index.html") as seen:
        assert seen.page.locator("#time").inner_text().startswith("Serve this folder")


def test_a_page_without_its_weights_says_so(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "cut")
    (tmp_path / "cut" / "layers.weights").unlink()
    with served(tmp_path / "cut") as address, opened(folder / "index.html", at=f"{address}/index.html") as seen:
        seen.page.wait_for_selector("html[data-failed]", state="attached")
        assert seen.page.locator("#time").inner_text().endswith("layers.weights' cannot be read: 404 File not found.")

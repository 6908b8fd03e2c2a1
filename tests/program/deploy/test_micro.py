"""Programs for microcontrollers: compared in QEMU, written as a library, and what is refused there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
import models
from graphopt.cli import run_line
from graphopt.errors import BundleError, OptionError
from graphopt.program.deploy import emulation
from graphopt.program.deploy.manifest import read_manifest
from graphopt.program.deploy.micro.files import micro_files
from tests import support
from tests.kernels.arm import emulator, needs_arm

NOT_HERE = "this machine cannot run thumbv7em: it is x86_64"
W = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


@pytest.fixture
def in_qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(emulator("thumbv7em") or "").parent), prepend=":")


def _layers() -> onnx.ModelProto:
    return support.model(
        """g (float[3,8] x, int64[3] i) => (float[3,16] y, int64[3] j) {
            p = MatMul(x, w) y = Gelu(p) j = Add(i, i)
        }""",
        20, w=W,
    )  # fmt: skip


@needs_arm
@pytest.mark.usefixtures("in_qemu")
@pytest.mark.parametrize("name", ("mlp_tiny", "dscnn_kws"))
def test_models_of_the_zoo(name: str, tmp_path: Path) -> None:
    compiled = graphopt.compile(models.load(name), dims=models.sizes(name), target="thumbv7em", name="net")
    assert compiled.not_compared is None and compiled.not_here == NOT_HERE
    assert 0 < compiled.max_rel < 1e-5  # it has run, and rounds otherwise
    compiled.save(tmp_path / "net")
    footprint = read_manifest(tmp_path / "net", library=False).footprint
    assert footprint is not None and footprint.outside == (), "nothing outside is asked for"
    held = sum(onnx.numpy_helper.to_array(one).nbytes for one in models.load(name).graph.initializer)
    assert held < footprint.flash < 1.5 * held + (96 << 10), "weights, and code"
    listing = compiled.linked.listing
    pieces = [*(one.bytes for one in (*listing.inputs, *listing.outputs)), listing.arena_bytes, listing.scratch_bytes]
    assert footprint.memory == sum(-(-size // 64) * 64 for size in pieces)


@needs_arm
@pytest.mark.usefixtures("in_qemu")
def test_several_inputs_of_several_types() -> None:
    compiled = graphopt.compile(_layers(), target="thumbv7em")
    program = emulation.Emulated(compiled.linked.listing, compiled.linked.weights, compiled.target)
    feeds = {"x": np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8), "i": np.array([1, -(2**40), 7])}
    y, j = program.run(None, feeds)
    wanted = support.session(_layers()).run(None, feeds)
    np.testing.assert_allclose(y, wanted[0], rtol=1e-5, atol=1e-5)  # sums of eight terms
    np.testing.assert_array_equal(j, wanted[1])


@needs_arm
@pytest.mark.usefixtures("in_qemu")
def test_what_compilers_bring_and_how_numbers_are_rounded() -> None:
    proto = support.model(
        """g (float[3,8] x, int64[3,8] n, int64[3,8] d) => (float[3,8] a, float[3,8] b, float[3,8] c, int64[3,8] q) {
            a = Floor(x) b = Ceil(x) c = Round(x) q = Div(n, d)
        }""",
        20,
    )  # fmt: skip
    compiled = graphopt.compile(proto, target="thumbv7em")
    assert compiled.not_compared is None
    _, footprint, _ = micro_files(compiled.linked.listing, compiled.linked.weights, compiled.target)
    assert footprint.outside == ("__aeabi_ldivmod",), "every compiler for ARM brings it"
    x = np.array([0.5, 1.5, -2.5, -0.3, 0.7, 8388607.5, -3e9, np.nan] * 3, np.float32).reshape(3, 8)
    n, d = np.arange(24).reshape(3, 8) * -(10**15) - 7, np.arange(1, 25).reshape(3, 8) * 999_999_937
    found = emulation.Emulated(compiled.linked.listing, compiled.linked.weights, compiled.target).run(
        None, {"x": x, "n": n, "d": d}
    )
    for got, wanted in zip(found, (np.floor(x), np.ceil(x), np.rint(x), -(-n // d)), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert (np.signbit(found[1]) == np.signbit(np.ceil(x)))[:, :7].all(), "zero keeps its sign"


def test_the_c_librarys_mathematics_is_named_and_not_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation.shutil, "which", lambda name: "/bin/true")
    proto = support.model("g (double[3,8] x) => (double[3,8] y, double[3,8] z) { y = Atan(x) z = Sinh(x) }", 20)
    compiled = graphopt.compile(proto, target="thumbv7em")
    said = "the emulator is given no C library, of which it calls atan, sinh"
    assert compiled.not_compared == f"{NOT_HERE}; {said}"
    *_, files = micro_files(compiled.linked.listing, compiled.linked.weights, compiled.target)
    assert "It calls atan, sinh, which" in bytes(files["model.h"]).decode()


@needs_arm
@pytest.mark.usefixtures("in_qemu")
def test_dims_that_a_run_finds() -> None:
    proto = support.model("g (float[4,5] x) => (int64[2,n] y) { y = NonZero(x) }", 20)
    compiled = graphopt.compile(proto, target="thumbv7em")
    program = emulation.Emulated(compiled.linked.listing, compiled.linked.weights, compiled.target)
    x = np.eye(4, 5, dtype=np.float32)
    np.testing.assert_array_equal(program.run(None, {"x": x})[0], np.array(np.nonzero(x)))
    *_, files = micro_files(compiled.linked.listing, compiled.linked.weights, compiled.target)
    assert "const int64_t *model_dims(int32_t number);" in bytes(files["model.h"]).decode()


@needs_arm
@pytest.mark.usefixtures("in_qemu")
def test_a_memory_budget_is_kept() -> None:
    """Sixteen channels of 32 x 32 pixels lie between two layers, unless these go by rows."""
    proto = support.model(
        """g (float[1,1,32,32] x) => (float[1,1,32,32] y) {
            h = Conv<pads=[1,1,1,1]>(x, v) r = Relu(h) y = Conv<pads=[1,1,1,1]>(r, w)
        }""",
        20, v=W[:, :9].repeat(2, 0).reshape(16, 1, 3, 3), w=W[:, :9].repeat(2, 0).reshape(1, 16, 3, 3),
    )  # fmt: skip
    free = graphopt.compile(proto, target="thumbv7em").linked.listing.arena_bytes
    tight = graphopt.compile(proto, target="thumbv7em", memory_budget=free // 2)
    assert free >= 16 * 32 * 32 * 4 and tight.linked.listing.arena_bytes <= free // 2
    assert tight.not_compared is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("micro")
    onnx.save(_layers(), path / "layers.onnx")
    words = ["compile", str(path / "layers.onnx"), str(path / "out"), "--target", "thumbv7em", "--unchecked"]
    assert run_line(words) == 0
    return path / "out"


def test_the_folder_and_what_is_said_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(one.name for one in folder.iterdir()) == ["layers.h", "liblayers.a", "main.c", "manifest.json"]
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["program"]["triple"] == "thumbv7em-unknown-none-eabihf"
    texts = (folder / "layers.h").read_text() + (folder / "main.c").read_text()
    assert "@" not in texts
    for word, name in (("FLASH", "flash"), ("RAM", "memory")):
        assert f"#define LAYERS_{word}_BYTES {manifest['footprint'][name]}\n" in texts
    assert "#define LAYERS_INPUT0_BYTES 96 /* float */" in texts and "#define LAYERS_OUTPUT1_ELEMENTS 3\n" in texts
    words = ["compile", str(folder.parent / "layers.onnx"), str(folder), "--target", "thumbv7em", "--unchecked"]
    assert run_line(words) == 0
    said = capsys.readouterr().out
    assert re.search(r"flash +\d.* KiB, code and weights", said) and "memory        " in said
    assert "by the figures of a Cortex-M4" in said


def test_the_header_and_the_example_compile(folder: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) is installed")
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{folder}"]
    subprocess.run([compiler, *options, "-c", str(folder / "main.c"), "-o", str(tmp_path / "main.o")], check=True)


def test_a_library_is_not_run_here(folder: Path) -> None:
    for call in (graphopt.check_bundle, read_manifest, graphopt.run):
        with pytest.raises(BundleError, match="is a library for a microcontroller, which is linked into a program"):
            call(folder)


@pytest.mark.parametrize(("options", "said"), [
    ({"form": "onnxruntime"}, "ONNX Runtime does not run on microcontrollers; leave out the form."),
    ({"threads": 2}, "a microcontroller has no threads, of which 2 are asked for; leave out the threads."),
    ({"ram": 1 << 20}, "a program on a microcontroller reads no files; leave out the budget of the process."),
    ({"tune": 1.0}, f"kernels cannot be measured: {NOT_HERE}; leave out the tuning."),
    ({"dims": {"n": (1, 4)}}, "a program on a microcontroller has one size of every dim; give dims numbers."),
    ({"dims": {"n": [1, 4]}}, "a program on a microcontroller has one size of every dim; give dims numbers."),
    ({"target": ["thumbv7em", "aarch64"]}, "are of several architectures; a library has code for one."),
    ({"precision": "bf16"}, "the processor has no matrix units"),
])  # fmt: skip
def test_what_is_refused(options: dict[str, object], said: str) -> None:
    free = support.model("g (float[n,8] x) => (float[n,16] y) { y = MatMul(x, w) }", 20, w=W)
    with pytest.raises(OptionError, match=re.escape(said)):
        graphopt.compile(free, **{"target": "thumbv7em", "dims": {"n": 2}, **options})


def test_without_an_emulator_it_is_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(emulation, "EMULATED", {})
    compiled = graphopt.compile(_layers(), target="thumbv7em")
    assert compiled.not_compared == f"{NOT_HERE}; no emulator of it is installed"
    with pytest.raises(graphopt.VerificationError, match="not compared with its model, so it is not saved"):
        compiled.save(tmp_path / "out")

"""Programs whose intermediate results leave the arena: the same bits, errors where the file fails, no traces."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.errors import BudgetNotKept, BundleError
from graphopt.program.deploy.manifest import read_manifest
from graphopt.program.deploy.session import Bundle
from kernels.moves import Reload, Spill
from tests import support
from tests.program.ram.test_streamed import PEAK

MIB = 1 << 20
SIDE = 256  # of an image of 16 channels: 4 MiB


def _net() -> onnx.ModelProto:
    """A skip connection, as in a U-Net, across what takes the most."""
    rng = np.random.default_rng(3)
    shapes = {
        "w0": (16, 3, 3, 3),
        "w1": (128, 16, 1, 1),
        "w2": (128, 128, 1, 1),
        "w3": (16, 128, 1, 1),
        "w4": (4, 32, 3, 3),
    }
    weights = {
        name: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in shapes.items()
    }
    text = f"""g (float[1,3,{SIDE},{SIDE}] x) => (float[1,4,{SIDE},{SIDE}] y) {{
      a = Conv <pads = [1,1,1,1]> (x, w0) skip = Relu (a)
      b = MaxPool <kernel_shape = [2,2], strides = [2,2]> (skip)
      c = Conv (b, w1) d = Relu (c) e = Conv (d, w2) f = Relu (e) h = Conv (f, w3) i = Relu (h)
      j = Resize <mode = "nearest"> (i, , two)
      k = Concat <axis = 1> (skip, j) y = Conv <pads = [1,1,1,1]> (k, w4)
    }}"""
    return support.model(text, two=np.array([1, 1, 2, 2], np.float32), **weights)


def _least(threads: int) -> int:
    with pytest.raises(BudgetNotKept) as caught:
        graphopt.compile(_net(), threads=threads, ram=1)
    return caught.value.least


@pytest.fixture(scope="module")
def feed() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(4).standard_normal((1, 3, SIDE, SIDE), np.float32)}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spilled") / "net"
    graphopt.compile(_net(), threads=2, name="net", ram=_least(2)).save(folder)
    return folder


@pytest.mark.parametrize("threads", [1, 2])
def test_the_bits_are_those_of_the_program_without_a_budget(threads: int, feed: dict[str, np.ndarray]) -> None:
    expected = graphopt.compile(_net(), threads=threads).run(None, feed)
    program = graphopt.compile(_net(), threads=threads, ram=_least(threads))
    within = program.linked.streamed
    assert within is not None and within.listing.ticketed is not None and within.spilled_bytes >= 4 * MIB
    moves = within.listing.ticketed.fetches
    assert any(isinstance(one, Spill) for one in moves) and any(isinstance(one, Reload) for one in moves)
    whole = graphopt.compile(_net(), threads=threads, ram=1 << 40).linked.streamed
    assert whole is not None and within.parts.arena <= whole.parts.arena - 4 * MIB
    for _ in range(3):
        assert all(map(np.array_equal, expected, program.run(None, feed)))


def test_a_bundle_spills_to_a_file_without_a_name(
    bundle: Path, feed: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ram = read_manifest(bundle).ram
    assert ram is not None and ram.spilled >= 4 * MIB
    program = Bundle(bundle, threads=2)
    expected = program.run(None, feed)
    assert list(tmp_path.iterdir()) == []
    assert all(map(np.array_equal, expected, Bundle(bundle, threads=1).run(None, feed)))


def test_a_folder_that_takes_no_file_is_refused(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(BundleError, match=r"need a temporary file, and '.*none' takes none: No such file"):
        Bundle(bundle)


def test_a_write_that_fails_is_an_error(
    bundle: Path, feed: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = Bundle(bundle, threads=2)
    expected = program.run(None, feed)
    files = {int(name): os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    (spilled,) = [number for number, file in files.items() if file.startswith(str(tmp_path))]
    kept, full = os.dup(spilled), os.open("/dev/full", os.O_RDWR)
    os.dup2(full, spilled)
    for _ in range(2):
        with pytest.raises(BundleError, match="the temporary file of intermediate results fails: No space left"):
            program.run(None, feed)
    os.dup2(kept, spilled)
    os.close(kept)
    os.close(full)
    assert all(map(np.array_equal, expected, program.run(None, feed)))


def test_a_child_process_has_a_file_of_its_own(bundle: Path, feed: dict[str, np.ndarray]) -> None:
    program = Bundle(bundle, threads=2)
    (expected,) = program.run(None, feed)
    child = os.fork()
    if child == 0:
        try:
            found = [program.run(None, {"x": sign * feed["x"]})[0] for sign in (-1, 1)]
            os._exit(0 if np.array_equal(found[1], expected) else 1)
        finally:
            os._exit(2)
    for _ in range(5):
        assert np.array_equal(program.run(None, feed)[0], expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
def test_the_process_of_a_c_program_takes_no_more(bundle: Path, feed: dict[str, np.ndarray], tmp_path: Path) -> None:
    goal, peak = tmp_path / "example", tmp_path / "peak.c"
    peak.write_text(PEAK)
    subprocess.run(
        ["cc", "-O2", str(bundle / "example.c"), str(peak), "-o", str(goal), f"-I{bundle}", f"-L{bundle}", "-lnet",
         "-lm", f"-Wl,-rpath,{bundle}"], check=True,
    )  # fmt: skip
    feed["x"].tofile(tmp_path / "x.raw")
    words = [str(goal), str(bundle / "net.weights"), str(tmp_path / "x.raw"), str(tmp_path / "y.raw")]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    ram = read_manifest(bundle).ram
    assert ram is not None and 0 < int(done.stderr) << 10 <= ram.bytes + 8 * MIB
    (expected,) = Bundle(bundle).run(None, feed)
    assert np.array_equal(np.fromfile(tmp_path / "y.raw", np.float32).reshape(expected.shape), expected)

"""Programs within a budget of the process: the same bits, no more memory than planned, errors and no crashes."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.errors import BudgetNotKept, BundleError, OptionError
from graphopt.program.deploy.compiled import Compiled
from graphopt.program.deploy.manifest import read_manifest
from graphopt.program.deploy.session import Bundle
from kernels.listing import Fetch, FetchRows
from kernels.target import ARCHITECTURES
from tests import support

GENERATOR = np.random.default_rng(8)
MIB = 1 << 20


def _array(*shape: int) -> np.ndarray:
    return (GENERATOR.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def _dense() -> onnx.ModelProto:
    lines = "\n".join(f"h{one} = MatMul (r{one}, w{one}) r{one + 1} = Relu (h{one})" for one in range(12))
    arrays = {f"w{one}": _array(640, 640) for one in range(12)}
    return support.model(f"g (float[9,640] r0) => (float[9,640] r12) {{ {lines} }}", **arrays)


def _table() -> onnx.ModelProto:
    text = """g (int64[5] ids, float[5,64] x) => (float[5,900] y) {
      e = Gather <axis = 0> (table, ids) s = Add (e, x) h = MatMul (s, w0) y = MatMul (h, w1)
    }"""
    return support.model(text, table=_array(9000, 64), w0=_array(64, 900), w1=_array(900, 900))


def _images(channels: int = 96) -> onnx.ModelProto:
    lines = "\n".join(
        f"c{one} = Conv <pads = [1,1,1,1]> (r{one}, w{one}) r{one + 1} = Relu (c{one})" for one in range(7)
    )
    weights = {f"w{one}": _array(channels, channels, 3, 3) for one in range(7)}
    image = f"float[1,{channels},28,28]"
    return support.model(f"g ({image} r0) => ({image} r7) {{ {lines} }}", **weights)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "dense": _dense, "table": _table, "images": _images,
    "channels that fill no vector": partial(_images, 60),
}  # fmt: skip


def _feed(program: Compiled) -> dict[str, np.ndarray]:
    found = {}
    for one in program.get_inputs():
        shape = [int(dim) for dim in one.shape]
        ids = np.array([3, -1, 8999, 0, 4000])
        found[one.name] = ids if "int" in one.type else np.random.default_rng(1).standard_normal(shape, np.float32)
    return found


def _least(model: onnx.ModelProto, threads: int) -> int:
    with pytest.raises(BudgetNotKept) as caught:
        graphopt.compile(model, threads=threads, ram=1)
    assert "the process takes" in str(caught.value)
    return caught.value.least


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_the_bits_are_those_of_the_program_without_a_budget(name: str, threads: int) -> None:
    model = MODELS[name]()
    plain = graphopt.compile(model, threads=threads)
    feed = _feed(plain)
    expected = plain.run(None, feed)
    least = _least(model, threads)
    for budget in (least, least + plain.linked.listing.weights_bytes // 3):
        program = graphopt.compile(model, threads=threads, ram=budget)
        within = program.linked.streamed
        assert within is not None and within.parts.total <= budget
        assert within.listing.ticketed is not None and within.listing.ticketed.fetches
        for _ in range(3):
            assert all(map(np.array_equal, expected, program.run(None, feed)))


def test_tables_are_read_by_rows_and_winograds_weights_as_taps() -> None:
    kinds = {}
    for name in ("table", "images"):
        model = MODELS[name]()
        within = graphopt.compile(model, threads=1, ram=_least(model, 1)).linked.streamed
        assert within is not None and within.listing.ticketed is not None
        kinds[name] = within.listing.ticketed.fetches
    assert [one.bytes for one in kinds["table"] if isinstance(one, FetchRows)] == [5 * 64 * 4]
    taps = [one for one in kinds["images"] if isinstance(one, Fetch) and one.transformed is not None]
    assert taps and all(one.transformed is not None and one.transformed.bytes > one.bytes for one in taps)


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_of_images_of_any_sides_are_read_as_taps(threads: int) -> None:
    text = """g (float[1,48,h,w] x) => (float[1,48,h,w] y) {
      a = Conv <pads = [1, 1, 1, 1]> (x, w0) y = Conv <pads = [2, 1, 2, 1]> (a, w1)
    }"""
    model = support.model(text, w0=0.1 * _array(48, 48, 3, 3), w1=0.1 * _array(48, 48, 5, 3))
    ranges = {"h": (6, 20), "w": (6, 24)}
    plain = graphopt.compile(model, dims=ranges, threads=threads)
    with pytest.raises(BudgetNotKept) as caught:
        graphopt.compile(model, dims=ranges, threads=threads, ram=1)
    program = graphopt.compile(model, dims=ranges, threads=threads, ram=caught.value.least)
    within = program.linked.streamed
    assert within is not None and within.listing.ticketed is not None and within.parts.total <= caught.value.least
    taps = [one for one in within.listing.ticketed.fetches if isinstance(one, Fetch) and one.transformed is not None]
    assert taps and all(one.transformed is not None and one.transformed.bytes > one.bytes for one in taps)
    for sides in ((20, 24), (7, 6), (14, 13)):
        x = np.random.default_rng(1).standard_normal((1, 48, *sides), np.float32)
        assert np.array_equal(plain(x=x)["y"], program(x=x)["y"])


@pytest.mark.parametrize("threads", [1, 2])
def test_sizes_of_a_range_are_run_within_one_budget(tmp_path: Path, threads: int) -> None:
    """Each run reads the rows that its indices name, however many they are, and no index behind the last one."""
    text = """g (int64[n] ids, float[n,64] x) => (float[n,900] y) {
      e = Gather <axis = 0> (table, ids) s = Add (e, x) h = MatMul (s, w0) y = MatMul (h, w1)
    }"""
    model = support.model(text, table=_array(9000, 64), w0=_array(64, 900), w1=_array(900, 900))
    plain = graphopt.compile(model, dims={"n": (0, 9)}, threads=threads)
    with pytest.raises(BudgetNotKept) as caught:
        graphopt.compile(model, dims={"n": (0, 9)}, threads=threads, ram=1)
    program = graphopt.compile(model, dims={"n": (0, 9)}, threads=threads, ram=caught.value.least)
    within = program.linked.streamed
    assert within is not None and within.listing.ticketed is not None and within.parts.total <= caught.value.least
    (rows,) = [one for one in within.listing.ticketed.fetches if isinstance(one, FetchRows)]
    assert rows.count == 9 and rows.run_count is not None and rows.run_count.at({"n": 4}) == 4
    program.save(tmp_path / "bundle")
    bundle = Bundle(tmp_path / "bundle", threads=threads)
    for n in (9, 1, 0, 4, 8):
        pages = np.full(9, 1 << 40)  # what lies behind the indices of a run is no index
        pages[:n] = GENERATOR.integers(-9000, 9000, n)
        feed = {"ids": pages[:n], "x": GENERATOR.standard_normal((n, 64), np.float32)}
        (expected,) = plain.run(None, feed)
        assert np.array_equal(program.run(None, feed)[0], expected) and np.array_equal(
            bundle.run(None, feed)[0], expected
        )


def test_a_budget_for_everything_fetches_nothing() -> None:
    program = graphopt.compile(_dense(), threads=2, ram=64 * MIB)
    within = program.linked.streamed
    assert within is not None and within.listing.ticketed is not None and within.listing.ticketed.fetches == ()


def test_a_program_that_has_nothing_to_fetch_says_what_it_takes() -> None:
    model = support.model("g (float[4,8] x) => (float[4,3] y) { y = MatMul (x, w) }", w=_array(8, 3))
    least = _least(model, 1)
    assert graphopt.compile(model, threads=1, ram=least).linked.streamed is not None


def test_kernels_are_measured_where_all_weights_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = _dense()
    program = graphopt.compile(model, threads=1, ram=_least(model, 1) + MIB, tune=0.05)
    within = program.linked.streamed
    assert within is not None and within.listing.ticketed is not None and within.listing.ticketed.fetches
    assert program.program.weights.size == within.file.size and program.max_rel < 1e-4


def test_requests_that_no_budget_is_kept_for() -> None:
    model = _dense()
    for options in ({"target": "wasm32"}, {"form": "onnxruntime"}, {"target": ["x86-64-v3", "x86-64-v4"]}):
        with pytest.raises(OptionError, match="budget of the process"):
            graphopt.compile(model, ram=8 * MIB, **options)  # type: ignore[arg-type]


# -- bundles -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ram") / "dense"
    model = _dense()
    graphopt.compile(model, threads=2, name="dense", ram=_least(model, 2) + 2 * MIB).save(folder)
    return folder


@pytest.fixture(scope="module")
def feed(bundle: Path) -> dict[str, np.ndarray]:
    return {"r0": np.random.default_rng(2).standard_normal((9, 640), np.float32)}


def test_a_bundle_reads_its_file(bundle: Path, feed: dict[str, np.ndarray]) -> None:
    ram = read_manifest(bundle).ram
    assert ram is not None and ram.fetched > 4 * MIB and ram.workers == 2
    assert ram.bytes == ram.kept + ram.ring + ram.arena + ram.scratch + ram.arguments + ram.code
    program = Bundle(bundle, threads=2)
    expected = program.run(None, feed)
    for threads in (1, 2, 7):
        other = Bundle(bundle, threads=threads)
        assert all(map(np.array_equal, expected, other.run(None, feed)))
        other.check()
        assert all(map(np.array_equal, expected, other.run(None, feed))), "a check leaves nothing behind"
        other.close()


def test_other_tools_say_that_it_reads_while_it_runs(bundle: Path) -> None:
    for tool in (graphopt.certify, graphopt.profile):
        with pytest.raises(BundleError, match="reads weights while it runs"):
            tool(bundle)


def _copied(bundle: Path, folder: Path) -> Path:
    shutil.copytree(bundle, folder / "copy")
    return folder / "copy"


def test_a_file_that_is_cut_off_while_it_runs_is_an_error(
    bundle: Path, feed: dict[str, np.ndarray], tmp_path: Path
) -> None:
    folder = _copied(bundle, tmp_path)
    program = Bundle(folder, threads=2)
    expected = program.run(None, feed)
    content = (folder / "dense.weights").read_bytes()
    os.truncate(folder / "dense.weights", len(content) - 5000)
    for _ in range(2):
        with pytest.raises(BundleError, match="the weights file cannot be read: it is shorter than when"):
            program.run(None, feed)
    with pytest.raises(BundleError, match="cannot be read"):
        program.check()
    with (folder / "dense.weights").open("r+b") as file:
        file.write(content)
    assert all(map(np.array_equal, expected, program.run(None, feed))), "the file is whole again"


def test_a_read_that_fails_is_an_error(bundle: Path, feed: dict[str, np.ndarray], tmp_path: Path) -> None:
    folder = _copied(bundle, tmp_path)
    program = Bundle(folder, threads=1)
    expected = program.run(None, feed)
    file = str((folder / "dense.weights").resolve())
    read = [int(name) for name in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{name}") == file]
    held = {number: os.dup(number) for number in read}
    assert held, "the model reads the file while it runs"
    elsewhere = os.open(folder, os.O_RDONLY)
    for number in held:
        os.dup2(elsewhere, number)
    with pytest.raises(BundleError, match="the weights file cannot be read: Is a directory"):
        program.run(None, feed)
    for number, kept in held.items():
        os.dup2(kept, number)
        os.close(kept)
    os.close(elsewhere)
    assert all(map(np.array_equal, expected, program.run(None, feed)))


def test_a_damaged_file_is_found_by_its_checksum(bundle: Path, tmp_path: Path) -> None:
    folder = _copied(bundle, tmp_path)
    with (folder / "dense.weights").open("r+b") as file:
        file.seek(-70_000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    program = Bundle(folder, threads=1)
    with pytest.raises(BundleError, match="the weights are damaged"):
        program.check()


def test_a_child_process_reads_for_itself(bundle: Path, feed: dict[str, np.ndarray]) -> None:
    program = Bundle(bundle, threads=2)
    (expected,) = program.run(None, feed)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"=" if np.array_equal(program.run(None, feed)[0], expected) else b"!")
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"=" and os.waitpid(child, 0)[1] == 0
    assert np.array_equal(program.run(None, feed)[0], expected)


def _refuse(call: int) -> None:
    """From here on the system refuses a call to this process: a filter of Linux (seccomp) of four instructions."""
    load, compare, give = 0x20, 0x15, 0x06
    allowed, refused = 0x7FFF0000, 0x00050000 | errno.ENOSYS
    rows = [(load, 0, 0, 0), (compare, 0, 1, call), (give, 0, 0, refused), (give, 0, 0, allowed)]
    content = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(content))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    unprivileged, filtered = (38, 1, 0, 0, 0), (22, 2, program, 0, 0)
    for words in (unprivileged, filtered):
        assert prctl(*words) == 0, os.strerror(ctypes.get_errno())


@pytest.mark.parametrize("which", [0, 1])
def test_where_the_system_has_no_asynchronous_reads_they_follow_one_another(
    bundle: Path, feed: dict[str, np.ndarray], which: int
) -> None:
    (expected,) = Bundle(bundle).run(None, feed)
    child = os.fork()
    if child == 0:
        try:
            _refuse(ARCHITECTURES[platform.machine()].asynchronous[which])  # io_setup, or io_submit
            equal = np.array_equal(Bundle(bundle, threads=2).run(None, feed)[0], expected)
            os._exit(0 if equal else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


PEAK = r"""#include <stdio.h>
__attribute__((destructor)) static void peak(void) {
    char line[256];
    long kib;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) fprintf(stderr, "%ld", kib);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed")
def test_the_process_of_a_c_program_takes_no_more(bundle: Path, feed: dict[str, np.ndarray], tmp_path: Path) -> None:
    goal, peak = tmp_path / "example", tmp_path / "peak.c"
    peak.write_text(PEAK)
    subprocess.run(
        ["cc", "-O2", str(bundle / "example.c"), str(peak), "-o", str(goal), f"-I{bundle}", f"-L{bundle}", "-ldense",
         "-lm", f"-Wl,-rpath,{bundle}"], check=True,
    )  # fmt: skip
    feed["r0"].tofile(tmp_path / "r0.raw")
    words = [str(goal), str(bundle / "dense.weights"), str(tmp_path / "r0.raw"), str(tmp_path / "r12.raw")]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    ram = read_manifest(bundle).ram
    assert ram is not None and 0 < int(done.stderr) << 10 <= ram.bytes + 8 * MIB
    assert ram.bytes + 8 * MIB < ram.kept + ram.fetched, "it would not fit otherwise"
    (expected,) = Bundle(bundle).run(None, feed)
    assert np.array_equal(np.fromfile(tmp_path / "r12.raw", np.float32).reshape(9, 640), expected)

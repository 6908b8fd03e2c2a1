"""Large outputs of a run lie in files that it writes, with the bits that it gives elsewhere; so does what is fed."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import graphopt
from graphopt.check import apart, held, runner
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.check.runner import Workplace
from graphopt.model.rooms import Lent, Room, is_written, lent, let_go
from tests import support

LAYERS, SIDE = 3, 1472  # weights of 8.3 MiB each: with their averages more than 64 MiB
STEP = """
import sys
import graphopt
from graphopt.check.heap import give_back
from graphopt.check.held import Held
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.check.runner import Workplace

def bytes_of(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(key))

model = graphopt.load(sys.argv[1])
with Workplace() as workplace:
    runner = workplace.runner(model, True)
    feed = Held(most=0).feed(make_feed(inputs_of(model), {}, "normal"))
    give_back()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = bytes_of("VmRSS")
    found = runner.run(feed)
    print(bytes_of("VmHWM") - before, sum(one.nbytes for one in found), sum(one.nbytes for one in feed.values()))
"""
TEXT = """g (float[64, 64] w, float[64] x, float r) => (float[64, 64] next, float[64] y, float s) {
    a = Mul(w, r)
    next = Sub(w, a)
    y = MatMul(next, x)
    s = Add(r, r)
}"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Outputs from 1024 bytes on lie in files of this folder."""
    for module, name in ((runner, "LARGE"), (runner, "FROM"), (apart, "LARGE"), (held, "LARGE")):
        monkeypatch.setattr(module, name, 1024)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def outputs(model: onnx.ModelProto, *, optimized: bool = False) -> list[np.ndarray]:
    loaded = graphopt.load(model)
    with Workplace() as workplace:
        feed = make_feed(inputs_of(loaded), {}, "normal")
        return [np.asarray(one) for one in workplace.runner(loaded, True, optimized=optimized).run(feed)]


@pytest.mark.parametrize("optimized", [False, True])
def test_outputs_in_files_have_the_same_bits_and_dims(
    optimized: bool, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process and in another one; the scalars beside them stay scalars."""
    some = outputs(support.model(TEXT), optimized=optimized)
    monkeypatch.setattr(runner, "FROM", 1 << 30)
    others = outputs(support.model(TEXT), optimized=optimized)
    assert [is_written(one) for one in some] == [True, False, False] and not any(map(is_written, others))
    for one, other in zip(some, others, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    assert not list(small.glob("graphopt-verify-*")) and not any(small.glob("tmp*"))


def test_an_output_of_other_dims_than_the_model_declares_is_given_all_the_same(small: Path) -> None:
    model = support.model("g (float[64, 64] x) => (float[64, 64] y) { y = Abs(x) }")
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 32
    (found,) = outputs(model)
    assert found.shape == (64, 64) and not is_written(found)


def test_without_a_folder_outputs_stay_in_memory(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(small / "none"))
    found, _, _ = outputs(support.model(TEXT))
    assert found.shape == (64, 64) and not is_written(found)


def full(number: int, start: int, size: int) -> None:
    """As a disk without room."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_on_a_full_disk_outputs_stay_in_memory(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a file that the disk has no room for would end the process when they are written."""
    monkeypatch.setattr("os.posix_fallocate", full)
    found, _, _ = outputs(support.model(TEXT))
    assert found.shape == (64, 64) and not is_written(found)
    assert not list(small.glob("graphopt-verify-*"))


def test_what_a_run_has_written_is_kept_where_it_is(small: Path) -> None:
    found, _, _ = outputs(support.model(TEXT))
    kept = held.Held(most=0).one(found)
    assert kept is found and not found.flags.writeable


def test_pages_that_are_let_go_of_keep_what_was_written(small: Path) -> None:
    array = Room(np.dtype(np.float32), (3, 5000)).array()
    array[:] = np.arange(15_000, dtype=np.float32).reshape(3, 5000)
    let_go(array)
    np.testing.assert_array_equal(array.reshape(-1), np.arange(15_000))


def test_a_lent_file_has_a_name_only_while_it_is_lent(small: Path) -> None:
    array = np.arange(24.0).reshape(4, 6).T
    with lent(array) as file:
        np.testing.assert_array_equal(Lent(file.path, file.room).array(), array)
        assert list(small.iterdir()) == [file.path]
    assert not list(small.iterdir())


def wide_step() -> onnx.ModelProto:
    """Products with Adam, and a loss for which ONNX Runtime has no kernel."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((SIDE, SIDE), np.float32) * np.float32(SIDE**-0.5), f"w{n}")
        for n in range(LAYERS)
    ]
    nodes = [
        helper.make_node("MatMul", [f"x{n}" if n else "x", f"w{n}"], [f"x{n + 1}" if n < LAYERS - 1 else "y"])
        for n in range(LAYERS)
    ]
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, SIDE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", ports[:1], ports[1:], weights)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return graphopt.train_step(model, loss="cross-entropy", optimizer="adam").to_proto()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_step_makes_its_averages_when_it_needs_them(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(wide_step(), file, save_as_external_data=True, location="m.data", size_threshold=1024)
    done = subprocess.run([sys.executable, "-c", STEP, str(file)], capture_output=True, text=True, check=True)
    taken, made, fed = map(int, done.stdout.split())
    # What is fed and made is there, and temporaries of one weight at a time: all averages at once are 2/3 of the state.
    assert made > 64 << 20 and taken < made + fed + 0.55 * made

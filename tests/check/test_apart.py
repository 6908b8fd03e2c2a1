"""Models that onnx objects to run in a process of their own, and what ends it ends nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.check import apart
from graphopt.check.reference import Reference
from graphopt.check.runner import CannotRun, OutOfTime, Workplace
from tests import support

FEED = {"x": np.array([1, -2], np.float32)}
NEGATED = "g (float[2] x) => (float[2] y) { y = Neg(x) }"


Load = Callable[..., apart.Distant]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Loads a model in a process of its own, which ends with the test."""
    processes = []

    def loaded(model: onnx.ModelProto, most_bytes: int = apart.MOST_BYTES) -> apart.Distant:
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        processes.append(apart.Process(most_bytes))
        return processes[-1].load(path, {})

    yield loaded
    for process in processes:
        process.close()


def test_an_engine_apart_gives_what_one_here_gives(load: Load) -> None:
    distant = load(support.model(NEGATED))
    assert distant.name == "ONNX Runtime, optimizations off"
    np.testing.assert_array_equal(distant.run(FEED)[0], [-1, 2])


def test_it_refuses_with_the_engines_words(load: Load) -> None:
    distant = load(support.model(NEGATED))
    with pytest.raises(CannotRun, match=r"Unexpected input data type|INVALID_ARGUMENT"):
        distant.run({"x": np.zeros(2, np.int64)})
    np.testing.assert_array_equal(distant.run(FEED)[0], [-1, 2])
    with pytest.raises(CannotRun, match="NoSuchOperator"):
        load(support.model("g (float[2] x) => (float[2] y) { y = NoSuchOperator(x) }"))


def test_the_end_of_the_process_is_a_refusal(load: Load) -> None:
    distant = load(support.model(NEGATED))
    os.kill(distant._process._process.pid, signal.SIGABRT)
    with pytest.raises(CannotRun, match="ended its process on this model"):
        distant.run(FEED)
    assert not distant._process.alive


def test_more_memory_than_it_is_given_is_a_refusal(load: Load) -> None:
    text = "g (float[1] x) => (float[1] y) { big = Expand(x, dims) y = ReduceMax <axes = [0]> (big) }"
    distant = load(support.model(text, dims=np.array([1 << 28], np.int64)), 400 << 20)
    with pytest.raises(CannotRun, match=r"(?i)alloc|memory"):
        distant.run({"x": np.ones(1, np.float32)})


def test_a_run_that_does_not_end_is_ended(load: Load) -> None:
    text = """g (float[2] x) => (float[2] y) {
      y = Loop (trips, , x) <
        body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = Identity(c) w = Neg(v) }>
    }"""
    distant = load(support.model(text, trips=np.array(1 << 60, np.int64)))
    with pytest.raises(OutOfTime):
        distant.run(FEED, 0.01)


def _misdeclared() -> ir.Model:
    """onnx objects to the declared shape of `a`; ONNX Runtime runs it. The weight is large enough to be handed over."""
    proto = support.model(
        "g (float[1,64] x) => (float[1,64] y) { a = MatMul(x, w) y = Neg(a) }", w=np.eye(64, dtype=np.float32)
    )
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [7, 7, 7]))
    return ir.from_proto(proto)


def test_only_a_model_that_onnx_objects_to_runs_apart() -> None:
    with Workplace() as workplace:
        sound = ir.from_proto(support.model(NEGATED))
        assert workplace.examined(sound)
        workplace.runner(sound, True)
        assert workplace._process is None
        model = _misdeclared()
        assert not workplace.examined(model)
        runner = workplace.runner(model, False)
        assert workplace._process is not None
        found = runner.run({"x": np.arange(64, dtype=np.float32)[None]})
        np.testing.assert_array_equal(found[0], -np.arange(64, dtype=np.float32)[None])


def test_such_a_model_is_still_verified() -> None:
    with Workplace() as workplace:
        reference = Reference(workplace, _misdeclared(), 60)
        assert reference.check(_misdeclared()).status == "verified"
        other = _misdeclared()
        other.graph[1].op_type = "Abs"
        assert reference.check(other).status == "different"


def test_another_process_is_started_after_one_has_ended() -> None:
    with Workplace() as workplace:
        workplace.runner(_misdeclared(), False)
        assert workplace._process is not None
        workplace._process.close()
        runner = workplace.runner(_misdeclared(), False)
        assert len(runner.run({"x": np.zeros((1, 64), np.float32)})) == 1


TURNED = """g (float[n,a] first, float[n,s,a] x) => (float[n,a] last, float[n,s,a] y) {
    last, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
        body = b (float[n,a] state, float[n,a] one) => (float[n,a] next, float[n,a] out) {
            next = Add(state, one) out = Identity(next) }>(first, x) }"""


def test_a_feed_on_which_the_engine_ends_its_process_is_refused_and_the_next_one_runs() -> None:
    """ONNX Runtime divides by the count of no elements where it turns what a Scan takes."""
    model = ir.from_proto(support.model(TURNED))

    def feed(steps: int) -> dict[str, object]:
        return {"first": np.zeros((3, 4), np.float32), "x": np.ones((3, steps, 4), np.float32)}

    with Workplace() as workplace:
        assert workplace.examined(model)
        runner = workplace.runner(model, True)
        with pytest.raises(CannotRun, match="ended its process"):
            runner.run(feed(0))
        np.testing.assert_array_equal(runner.run(feed(5))[0], np.full((3, 4), 5, np.float32))

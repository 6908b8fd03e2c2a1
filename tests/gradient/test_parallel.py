"""Steps whose batches are cut in shards: against the same step in one piece, against NumPy, and on two processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from distributed import Client, LocalCluster, WorkerPlugin

import graphopt
from graphopt.errors import MissingExtra, ModelError, OptionError
from graphopt.flows import cluster
from graphopt.flows.shards import SEEDS, Cutter
from graphopt.gradient.halves import halves_of
from graphopt.gradient.step import Step
from tests.clients import InThisProcess
from tests.gradient.differences import runner
from tests.gradient.masks import kept

PERCEPTRON = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
net (float[batch, 3] x) => (float[batch, 2] y)
<float[3, 2] w = {0.5, -1.0, 0.25, 1.5, -0.75, 0.1}, float[2] b = {0.1, -0.2}, float[2, 2] v = {1, 0.5, -0.5, 2}>
{
    h = MatMul(x, w)
    s = Add(h, b)
    t = Tanh(s)
    y = MatMul(t, v)
}
""")
NORMALIZED = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
net (float[batch, 2, 3] x) => (float[batch, 2, 3] y)
<float[2] scale = {1.0, 0.5}, float[2] bias = {0.1, 0.2}, float[2] mean = {0.5, 0.0}, float[2] var = {1.0, 2.0}>
{
    y = BatchNormalization <momentum = 0.75> (x, scale, bias, mean, var)
}
""")
DROPPED = """
<ir_version: 8, opset_import: ["": 17]>
net (float[batch, 6] x) => (float y)
<float ratio = {0.25}>
{
    h = MatMul(x, w)
    d = Dropout(h, ratio)
    m = Mul(d, d)
    y = ReduceMean <keepdims = 0> (m)
}
"""


def batches(count: int, samples: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {
            "x": rng.normal(size=(samples, 3)).astype(np.float32),
            "target": rng.normal(size=(samples, 2)).astype(np.float32),
        }
        for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize(("workers", "samples"), [(1, 4), (2, 4), (3, 5), (4, 3)])
def test_shards_train_as_the_whole_batch_does(name: str, workers: int, samples: int) -> None:
    optimizer = graphopt.Optimizer(name=name, learning_rate=0.1, weight_decay=0.05)  # type: ignore[arg-type]
    step = graphopt.train_step(PERCEPTRON, loss="mse", optimizer=optimizer)
    whole = graphopt.fit(step, batches(4, samples))
    client = InThisProcess(workers)
    apart = graphopt.fit(step, batches(4, samples), dask=client)
    assert len(client.parts) == 4 * min(workers, samples)
    np.testing.assert_allclose(apart.losses, whole.losses, rtol=1e-6)
    assert apart.values.keys() == whole.values.keys()
    for value, array in whole.values.items():  # float32: sums in another order, through four steps
        np.testing.assert_allclose(apart.values[value], array, rtol=2e-5, atol=2e-6, err_msg=value)
        assert apart.values[value].dtype == array.dtype


def test_accumulated_runs_rates_and_programs_come_apart_too() -> None:
    step = graphopt.train_step(PERCEPTRON, loss="mse", optimizer="momentum", accumulate=2)
    rates = [0.3, 0.2, 0.1, 0.05]
    whole = graphopt.fit(step, batches(4, 4), learning_rate=lambda run: rates[run])
    for engine in ("onnxruntime", "program"):
        apart = graphopt.fit(
            step, batches(4, 4), learning_rate=lambda run: rates[run], dask=InThisProcess(2),
            engine=engine, threads=1,  # type: ignore[arg-type]
        )  # fmt: skip
        for value, array in whole.values.items():
            np.testing.assert_allclose(apart.values[value], array, rtol=2e-5, atol=2e-6, err_msg=value)


def test_each_shard_has_statistics_of_its_own_which_are_averaged() -> None:
    """Shards of three and two samples, by NumPy; the first weights stand still, as the rate is 0."""
    x = np.random.default_rng(1).normal(size=(5, 2, 3)).astype(np.float32)
    step = graphopt.train_step(NORMALIZED, loss="mse", optimizer="sgd")
    found = graphopt.fit(
        step, [{"x": x, "target": np.zeros_like(x)}], learning_rate=0.0, dask=InThisProcess(2)
    )  # fmt: skip
    parts = [x[:2].astype(np.float64), x[2:].astype(np.float64)]
    means = [part.mean((0, 2)) for part in parts]
    variances = [part.var((0, 2)) for part in parts]
    mean, variance = ((one * 2 + other * 3) / 5 for one, other in (means, variances))
    np.testing.assert_allclose(found.parameters["mean"], 0.75 * np.array([0.5, 0]) + 0.25 * mean, rtol=1e-5)
    np.testing.assert_allclose(found.parameters["var"], 0.75 * np.array([1, 2]) + 0.25 * variance, rtol=1e-5)
    scaled = [
        (part - center[:, None]) / np.sqrt(spread + 1e-5)[:, None] * np.array([[1], [0.5]]) + np.array([[0.1], [0.2]])
        for part, center, spread in zip(parts, means, variances, strict=True)
    ]
    np.testing.assert_allclose(found.losses, [(np.concatenate(scaled) ** 2).mean()], rtol=1e-5)


def test_shards_drop_by_seeds_of_their_own() -> None:
    model = onnx.parser.parse_model(DROPPED)
    weights = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    x = np.random.default_rng(2).normal(size=(20, 6)).astype(np.float32)
    found = graphopt.fit(graphopt.train_step(model, loss="y"), [{"x": x}], seed=3, dask=InThisProcess(2))
    first = 3 * 1_000_003
    masks = np.concatenate([kept(first, 1, (10, 5), 0.25), kept(first + SEEDS, 1, (10, 5), 0.25)])
    assert (masks[:10] != masks[10:]).any()
    np.testing.assert_allclose(
        found.losses, [((x.astype(np.float64) @ weights * masks / 0.75) ** 2).mean()], rtol=1e-5
    )  # fmt: skip


def test_shards_count_as_many_targets_as_the_loss_does() -> None:
    step = graphopt.train_step(PERCEPTRON, loss="cross-entropy", optimizer="sgd", ignore_index=-1)
    x = np.random.default_rng(3).normal(size=(6, 3)).astype(np.float32)
    for targets in ([0, -1, -1, 1, 0, 1], [-1, -1, -1, 1, 0, -1]):  # at last a shard that counts none
        batch = {"x": x, "target": np.array(targets)}
        whole, apart = (graphopt.fit(step, [batch], dask=one) for one in (None, InThisProcess(2)))
        np.testing.assert_allclose(apart.losses, whole.losses, rtol=1e-6)
        for value, array in whole.values.items():
            np.testing.assert_allclose(apart.values[value], array, rtol=0, atol=1e-6, err_msg=value)


def test_a_step_of_fixed_dims_has_shards_of_those() -> None:
    fixed = onnx.ModelProto.FromString(PERCEPTRON.SerializeToString())
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    client = InThisProcess(2)
    apart = graphopt.fit(graphopt.train_step(fixed, loss="mse"), batches(2, 6), dask=client)
    assert [len(one.feeds["x"]) for one in client.parts] == [2] * 6
    whole = graphopt.fit(graphopt.train_step(PERCEPTRON, loss="mse"), batches(2, 6))
    np.testing.assert_allclose(apart.losses, whole.losses, rtol=1e-6)
    with pytest.raises(OptionError, match="a batch of 5 samples is no multiple of the 2 that the step is of"):
        graphopt.fit(graphopt.train_step(fixed, loss="mse"), batches(1, 5), dask=client)


def test_halves_are_models_of_their_own() -> None:
    step = graphopt.train_step(PERCEPTRON, loss="mse", optimizer="momentum")
    halves = halves_of(step.model, step.step)
    first, second = (onnx.ModelProto.FromString(graphopt_proto(one)) for one in (halves.gradients, halves.update))
    for proto in (first, second):
        onnx.checker.check_model(proto, full_check=True)
    assert {value.name for value in first.graph.input} == {"x", "target", "w", "b", "v"}
    assert {value.name for value in second.graph.input} == {
        "w", "b", "v", "w.momentum", "b.momentum", "v.momentum", "learning_rate", *step.step.gradients,
    }  # fmt: skip
    batch = batches(1, 4)[0]
    asked = graphopt.gradient(PERCEPTRON, loss="mse").to_proto()
    names = ["loss", *(f"gradient/{one.input}" for one in step.step.carried if one.kind == "parameter")]
    found = dict(zip(("loss", *step.step.gradients), runner(asked)(names, batch), strict=True))
    for name, array in zip(halves.means, runner(first)(list(halves.means), batch), strict=True):
        np.testing.assert_allclose(array, found[name], rtol=1e-6, atol=1e-7)


def graphopt_proto(model: Any) -> bytes:
    from graphopt.model.save import to_proto

    return to_proto(model).SerializeToString()


def test_what_does_not_come_apart_is_refused() -> None:
    step = graphopt.train_step(PERCEPTRON, loss="mse")
    old = step.to_proto()
    for entry in old.metadata_props:
        entry.value = entry.value.replace('"gradients"', '"others"')
    with pytest.raises(ModelError, match="the step's gradients are not found in it"):
        graphopt.fit(old, batches(1, 4), dask=InThisProcess(2))
    with pytest.raises(OptionError, match="a batch has 4 samples of 'target' and 3 of 'x'"):
        graphopt.fit(step, [{"x": batches(1, 3)[0]["x"], "target": np.zeros((4, 2))}], dask=InThisProcess(2))
    with pytest.raises(OptionError, match="a batch holds no samples"):
        graphopt.fit(step, batches(1, 0), dask=InThisProcess(2))
    with pytest.raises(OptionError, match="the cluster of Dask has no worker; start one"):
        graphopt.fit(step, batches(1, 4), dask=InThisProcess(0))


def test_inputs_begin_with_one_dim() -> None:
    def given(name: str, *dims: int | str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)

    step = Step("loss", (), None)
    with pytest.raises(OptionError, match="'target' begins with 'batch' and 'x' with 'steps'; a batch is cut"):
        Cutter(step, [given("x", "steps", "batch", 4), given("target", "batch")])
    with pytest.raises(OptionError, match="no input of the step has a first dim"):
        Cutter(step, [given("x")])
    cutter = Cutter(step, [given("x", "batch", 2), given("mask", 4, 4), given("scale")])
    feeds = {"x": np.arange(10.0).reshape(5, 2), "mask": np.ones((4, 4)), "scale": np.array(2.0)}
    shards = cutter.shards(feeds, 2)
    np.testing.assert_array_equal(np.concatenate([one.feeds["x"] for one in shards]), feeds["x"])
    assert all(one.feeds["mask"].shape == (4, 4) and one.feeds["scale"] == 2 for one in shards)
    assert [one.share for one in shards] == [0.4, 0.6]
    with pytest.raises(
        OptionError, match=r"'mask' does not begin with samples.* the dims \[4, 8\], and the step takes"
    ):
        cutter.shards({**feeds, "mask": np.ones((4, 8))}, 2)
    recurrent = Cutter(step, [given("x", 12, 8, 3), given("target", 8)])
    with pytest.raises(OptionError, match=r"'x' does not begin with samples.*\[12, 16, 3\], .* takes \[12, 8, 3\]"):
        recurrent.shards({"x": np.ones((12, 16, 3)), "target": np.ones(16)}, 2)


def test_what_a_cluster_loses_is_given_to_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PAUSE", 0)
    step = graphopt.train_step(PERCEPTRON, loss="mse", optimizer="adam")
    smooth = graphopt.fit(step, batches(3, 4), dask=InThisProcess(2))
    rough = graphopt.fit(step, batches(3, 4), dask=InThisProcess(2, losing=cluster.TRIES - 1))
    assert rough.losses == smooth.losses
    with pytest.raises(OptionError, match="the cluster of Dask loses its workers, or no longer answers: a worker is"):
        graphopt.fit(step, batches(3, 4), dask=InThisProcess(2, losing=cluster.TRIES))


def test_a_worker_without_graphopt_is_told() -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'graphopt'", name="graphopt")

    with pytest.raises(OptionError, match="a worker of the cluster has no module 'graphopt'; install it there"):
        cluster.repeated(absent)


def test_a_cluster_needs_dask_and_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    step = graphopt.train_step(PERCEPTRON, loss="mse")
    with pytest.raises(OptionError, match="no cluster of Dask answers at 'not an address'"):
        graphopt.fit(step, batches(1, 4), dask="not an address")
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"this needs distributed, which is not installed: pip install 'graphopt\["):
        graphopt.fit(step, batches(1, 4), dask="tcp://127.0.0.1:1")


class Deadly(WorkerPlugin):  # type: ignore[misc]
    """Kills the first worker that begins a shard, while it runs it."""

    name = "deadly"

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def transition(self, key: str, start: str, finish: str, **_: object) -> None:
        if finish == "executing" and str(key).startswith("weighted"):
            try:
                self.mark.touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def two() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as started:
        yield started


def test_two_processes_train_and_one_that_is_killed_in_a_step_changes_nothing(
    two: LocalCluster, tmp_path: Path
) -> None:
    step = graphopt.train_step(PERCEPTRON, loss="mse", optimizer="adam")
    expected = graphopt.fit(step, batches(3, 5), dask=InThisProcess(2))
    found = graphopt.fit(step, batches(3, 5), dask=two.scheduler_address)
    assert found.losses == expected.losses
    mark = tmp_path / "killed"
    with Client(two) as client:
        client.register_plugin(Deadly(mark))
        killed = graphopt.fit(step, batches(3, 5), dask=client, checkpoint=tmp_path / "c.npz", every=1)
        client.unregister_worker_plugin("deadly")
    assert mark.exists()
    assert killed.losses == expected.losses
    for name, array in expected.values.items():
        np.testing.assert_array_equal(killed.values[name], array)
    again = graphopt.fit(step, batches(3, 5), checkpoint=tmp_path / "c.npz")
    assert again.resumed == 3 and again.losses == expected.losses

"""Training steps: optimizers against NumPy, accumulation against one batch, the loop, its checkpoints, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import graphopt
from graphopt.errors import ModelError, OptionError
from models import trainable

MODEL = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["": 17]>
net (float[2, 3] x) => (float[2, 2] y)
<float[3, 2] w = {0.5, -1.0, 0.25, 1.5, -0.75, 0.1}, float[2] b = {0.1, -0.2}>
{
    h = MatMul(x, w)
    y = Add(h, b)
}
""")
W, B = np.array([[0.5, -1.0], [0.25, 1.5], [-0.75, 0.1]]), np.array([0.1, -0.2])


def _batches(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"x": rng.normal(size=(2, 3)).astype(np.float32), "target": rng.normal(size=(2, 2)).astype(np.float32)}
        for _ in range(count)
    ]


def _by_numpy(optimizer: graphopt.Optimizer, count: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses and weights of so many steps, in float64."""
    values = {"w": W.copy(), "b": B.copy()}
    state = {name: [np.zeros_like(value), np.zeros_like(value)] for name, value in values.items()}
    losses = []
    for t, batch in enumerate(_batches(count), 1):
        x, target = batch["x"].astype(np.float64), batch["target"].astype(np.float64)
        error = x @ values["w"] + values["b"] - target
        losses.append(float((error**2).mean()))
        slope = 2 * error / error.size
        for name, gradient in (("w", x.T @ slope), ("b", slope.sum(0))):
            value, rate = values[name], optimizer.learning_rate
            if optimizer.name == "adamw":
                value = value * (1 - rate * optimizer.weight_decay)
            else:
                gradient = gradient + optimizer.weight_decay * value
            if optimizer.name in ("adam", "adamw"):
                first, second = state[name]
                first[:] = optimizer.beta1 * first + (1 - optimizer.beta1) * gradient
                second[:] = optimizer.beta2 * second + (1 - optimizer.beta2) * gradient**2
                scale = np.sqrt(second / (1 - optimizer.beta2**t)) + optimizer.epsilon
                gradient = first / (1 - optimizer.beta1**t) / scale
            elif optimizer.name == "momentum":
                state[name][0][:] = optimizer.momentum * state[name][0] + gradient
                gradient = state[name][0]
            values[name] = value - rate * gradient
    return losses, values


@pytest.mark.parametrize("engine", ["onnxruntime", "program"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_each_optimizer_has_the_arithmetic_of_its_paper(name: str, decay: float, engine: str) -> None:
    optimizer = graphopt.Optimizer(name=name, learning_rate=0.05, weight_decay=decay)  # type: ignore[arg-type]
    step = graphopt.train_step(MODEL, loss="mse", optimizer=optimizer)
    result = graphopt.fit(step, _batches(6), engine=engine)  # type: ignore[arg-type]
    losses, values = _by_numpy(optimizer, 6)
    np.testing.assert_allclose(result.losses, losses, rtol=1e-5)
    for name_of, value in values.items():
        np.testing.assert_allclose(result.parameters[name_of], value, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_two_accumulated_runs_change_weights_as_one_of_their_mean(name: str) -> None:
    optimizer = graphopt.Optimizer(name=name, learning_rate=0.1)  # type: ignore[arg-type]
    batches = _batches(6)
    twice = graphopt.fit(graphopt.train_step(MODEL, loss="mse", optimizer=optimizer, accumulate=2), batches)
    wide = onnx.ModelProto.FromString(MODEL.SerializeToString())
    for value in (*wide.graph.input, *wide.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    pairs = [
        {name: np.concatenate([first[name], second[name]]) for name in first}
        for first, second in zip(batches[::2], batches[1::2], strict=True)
    ]
    once = graphopt.fit(graphopt.train_step(wide, loss="mse", optimizer=optimizer), pairs)
    for name_of in ("w", "b"):
        np.testing.assert_allclose(twice.parameters[name_of], once.parameters[name_of], rtol=0, atol=1e-6)


def test_a_loop_that_was_killed_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    step = graphopt.train_step(MODEL, loss="mse", optimizer="adam")
    whole = graphopt.fit(step, _batches(9))

    def failing() -> Iterator[dict[str, np.ndarray]]:
        yield from _batches(9)[:7]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        graphopt.fit(step, failing(), checkpoint=tmp_path / "c.npz", every=3)
    again = graphopt.fit(step, _batches(9), checkpoint=tmp_path / "c.npz", every=3)
    assert again.resumed == 6
    assert again.losses == whole.losses
    for name, value in whole.values.items():
        np.testing.assert_array_equal(again.values[name], value)


def test_a_checkpoint_of_another_step_is_refused(tmp_path: Path) -> None:
    graphopt.fit(graphopt.train_step(MODEL, loss="mse"), _batches(1), checkpoint=tmp_path / "c.npz")
    other = graphopt.train_step(MODEL, loss="mse", optimizer="adam")
    with pytest.raises(OptionError, match="is a checkpoint of another step; name another file, or remove it"):
        graphopt.fit(other, _batches(1), checkpoint=tmp_path / "c.npz")
    (tmp_path / "c.npz").write_bytes(b"text")
    with pytest.raises(OptionError, match="is no checkpoint"):
        graphopt.fit(other, _batches(1), checkpoint=tmp_path / "c.npz")


def test_the_rate_may_follow_the_run() -> None:
    step = graphopt.train_step(MODEL, loss="mse")
    still = graphopt.fit(step, _batches(2), learning_rate=lambda run: 0.0)
    np.testing.assert_array_equal(still.parameters["w"], W.astype(np.float32))


def test_the_trained_model_has_the_new_weights(tmp_path: Path) -> None:
    result = graphopt.fit(graphopt.train_step(MODEL, loss="mse"), _batches(3))
    result.save(tmp_path / "trained.onnx")
    held = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    np.testing.assert_array_equal(held["w"], result.parameters["w"])
    assert not np.array_equal(held["w"], W.astype(np.float32))


def test_a_step_of_a_file_trains_too(tmp_path: Path) -> None:
    step = graphopt.train_step(MODEL, loss="mse")
    step.save(tmp_path / "step.onnx")
    result = graphopt.fit(tmp_path / "step.onnx", _batches(2))
    assert result.losses == graphopt.fit(step, _batches(2)).losses
    with pytest.raises(OptionError, match="the step was read from a file, which does not hold the model"):
        result.save(tmp_path / "trained.onnx")


def test_what_does_not_fit_is_refused() -> None:
    step = graphopt.train_step(MODEL, loss="mse")
    with pytest.raises(OptionError, match="a batch lacks 'target'; the step takes target, x"):
        graphopt.fit(step, [{"x": np.zeros((2, 3))}])
    with pytest.raises(OptionError, match="a batch has 'z', which the step does not take"):
        graphopt.fit(step, [{"x": np.zeros((2, 3)), "target": np.zeros((2, 2)), "z": np.zeros(1)}])
    with pytest.raises(ModelError, match="the model is no training step"):
        graphopt.fit(MODEL, [])
    with pytest.raises(OptionError, match="there is no engine 'torch'"):
        graphopt.fit(step, [], engine="torch")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="there is no optimizer 'lion'"):
        graphopt.train_step(MODEL, loss="mse", optimizer="lion")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="there is no output 'z' for a loss; there are 'y'"):
        graphopt.gradient(MODEL, loss="z")
    with pytest.raises(OptionError, match="output 'y' is no float of one element"):
        graphopt.gradient(MODEL, loss="y")
    with pytest.raises(OptionError, match="the model has no input and no initializer 'v'"):
        graphopt.gradient(MODEL, loss="mse", with_respect_to="v")


def test_the_curve_is_a_page(tmp_path: Path) -> None:
    result = graphopt.fit(graphopt.train_step(MODEL, loss="mse"), _batches(3))
    result.write(tmp_path / "curve.html")
    assert "graphopt training report" in (tmp_path / "curve.html").read_text()


def test_a_step_of_a_recurrent_network_is_compared_where_nothing_saturates() -> None:
    """Slopes of what saturates are rounding: feeds of hundreds would tell nothing of a program."""
    step = graphopt.train_step(trainable.lstm(0), loss="cross-entropy", optimizer="adam")
    verification = graphopt.compile(step.to_proto(), threads=1).verification
    assert verification.passed and "wild" in verification.draws and "large" not in verification.draws


def test_a_program_changes_a_mapped_file_where_it_lies(tmp_path: Path) -> None:
    """An array of the caller's own is copied once; a file that is mapped to be written is meant to change."""
    step = graphopt.train_step(MODEL, loss="mse", optimizer="momentum")
    program = graphopt.compile(step.to_proto(), threads=1)
    mapped = np.lib.format.open_memmap(tmp_path / "w.npy", "w+", np.float32, (3, 2))
    mapped[...] = W
    own = W.astype(np.float32)
    feeds: dict[str, np.ndarray] = {
        "b": B.astype(np.float32), "w.momentum": np.zeros((3, 2), np.float32), "b.momentum": np.zeros(2, np.float32),
        "learning_rate": np.array(0.1, np.float32), **_batches(1)[0],
    }  # fmt: skip
    for weights in (mapped, own):
        found = program.run(None, {**feeds, "w": weights})
        changed = found[[one.name for one in program.program.outputs].index("w_new")]
        assert np.shares_memory(changed, weights) is (weights is mapped)
    assert np.array_equal(own, W.astype(np.float32)) and not np.array_equal(mapped, own)
    del mapped
    assert np.array_equal(np.load(tmp_path / "w.npy"), changed), "the file has what the run gave"
    locked = np.load(tmp_path / "w.npy", mmap_mode="r")
    program.run(None, {**feeds, "w": locked})
    assert np.array_equal(np.load(tmp_path / "w.npy"), locked), "one that is mapped to be read is copied"

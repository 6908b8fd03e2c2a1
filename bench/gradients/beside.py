"""One model's gradients by torch in float64 and float32, and by the graph that graphopt writes, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
from torch import Tensor

import graphopt
import models
from bench.gradients.__main__ import FACTOR, FLOOR
from bench.gradients.losses import Loss, draw_target, loss_of
from bench.gradients.torch_graph import Array, Graph, gradients, tensor
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.errors import GraphoptError

NOTHING = 1e-9  # of the largest gradient of a model: below it there is only rounding
SEED = 23
RUNS = 3  # of torch in float32, the first on the weights as they are
# Inputs that are constants of an operator, or statistics that no gradient trains.
FIXED = {("Resize", 1), ("Resize", 2), ("BatchNormalization", 3), ("BatchNormalization", 4)}


@dataclass(frozen=True, slots=True)
class Beside:
    """What became of a model: errors of its worst tensors, and how far the worst of ours is of what is allowed."""

    model: str
    tensors: int
    own: float  # the largest error of torch's float32 run
    ours: float | None  # None: graphopt or ONNX Runtime refused, and `where` has the words
    worst: float | None  # the largest error over what is allowed
    where: str
    beyond: int  # tensors beyond what is allowed

    @property
    def verdict(self) -> str:
        """A line for the console."""
        if self.worst is None:
            return f"torch float32 {self.own:.1e} on {self.tensors} tensors; {self.where}"
        return f"{self.ours:.1e} beside {self.own:.1e}, {self.worst:.2f} of what is allowed at {self.where}"


def gradients_beside(name: str, loss: Loss) -> Beside:
    """The gradients of every weight and float input of a zoo model."""
    model = models.load(name)
    feed: dict[str, Array] = {
        key: np.asarray(value)
        for key, value in make_feed(inputs_of(graphopt.load(model)), models.sizes(name), "normal").items()
    }
    with torch.no_grad():
        output = Graph(model, torch.float32).evaluate(feed)[model.graph.output[0].name]
    target = draw_target(loss, tuple(output.shape), SEED)
    weights = [*trained(model), *(key for key, value in feed.items() if value.dtype.kind == "f")]
    _, wide = by_torch(model, feed, target, loss, weights, torch.float64)
    own = dict.fromkeys(wide, 0.0)
    for run in range(RUNS):
        _, plain = by_torch(nudged(model, run), feed, target, loss, list(wide), torch.float32)
        own = {key: max(own[key], one) for key, one in errors(wide, plain).items()}
    try:
        found = _by_graphopt(name, model, feed, target, loss, list(wide))
    except (GraphoptError, RuntimeError) as refusal:
        words = str(refusal).splitlines()[0][:120]
        return Beside(name, len(wide), max(own.values()), None, None, words, len(wide))
    ours = errors(wide, found)
    shares = {key: ours[key] / max(FACTOR * own[key], FLOOR) for key in wide}
    worst = max(shares, key=lambda key: shares[key])
    beyond = sum(share > 1 for share in shares.values())
    return Beside(name, len(wide), max(own.values()), max(ours.values()), shares[worst], worst, beyond)


def trained(model: onnx.ModelProto) -> list[str]:
    """The float initializers that a training changes: neither scalars, nor scales of images, nor statistics."""
    fixed = {node.input[place] for node in model.graph.node for kind, place in FIXED
             if node.op_type == kind and place < len(node.input)}  # fmt: skip
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    return [
        one.name for one in model.graph.initializer
        if one.data_type in floats and one.name not in fixed and np.prod(one.dims) > 1
    ]  # fmt: skip


def nudged(model: onnx.ModelProto, run: int) -> onnx.ModelProto:
    """The model with every weight moved by at most a unit of rounding, another way each run; as it is in run 0.

    Where a value stands near a kink (a ReLU near zero, two nearly equal elements of a window), rounding decides which
    way the gradient goes, and each float32 run decides some of them otherwise. One run says too little about that.
    """
    if run == 0:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    generator = np.random.default_rng([SEED, run])
    names = set(trained(model))
    for one in copy.graph.initializer:
        if one.name in names:
            array = numpy_helper.to_array(one)
            away = np.nextafter(
                array, np.where(generator.random(array.shape) < 0.5, np.inf, -np.inf), dtype=array.dtype
            )
            one.CopyFrom(numpy_helper.from_array(away, one.name))
    return copy


def by_torch(
    model: onnx.ModelProto, feed: Mapping[str, Array], target: Array, loss: Loss, names: list[str], dtype: torch.dtype
) -> tuple[float, dict[str, Array]]:
    """The loss on the model's first output, and the gradients by `names`."""
    wanted = tensor(target, dtype)

    def total(values: Mapping[str, Tensor]) -> Tensor:
        return loss_of(loss, values[model.graph.output[0].name], wanted)

    return gradients(model, feed, names, loss=total, dtype=dtype)


def errors(wide: Mapping[str, Array], found: Mapping[str, Array]) -> dict[str, float]:
    """The relative error of each gradient, those that are only rounding by the model's largest one."""
    sizes = {name: float(np.abs(one).max(initial=0.0)) for name, one in wide.items()}
    largest = max(sizes.values()) or 1.0
    result = {}
    for name, one in wide.items():
        assert found[name].shape == one.shape, f"the gradient of {name} has dims {found[name].shape}, not {one.shape}"
        scale = sizes[name] if sizes[name] > NOTHING * largest else largest
        difference = float(np.abs(found[name].astype(np.float64) - one).max(initial=0.0))
        result[name] = difference / scale if np.isfinite(difference) else float("inf")
    return result


def _by_graphopt(
    name: str, model: onnx.ModelProto, feed: Mapping[str, Array], target: Array, loss: Loss, names: list[str]
) -> dict[str, Array]:
    done = graphopt.gradient(model, loss=loss, with_respect_to=names, dims=models.sizes(name))
    graph = done.to_proto()
    onnx.checker.check_model(graph, full_check=True)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run([done.gradients[one] for one in names], {**feed, "target": target})
    return dict(zip(names, results, strict=True))

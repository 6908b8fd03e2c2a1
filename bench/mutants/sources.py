"""The models that are changed: node tests of onnx with their recorded inputs, networks of the zoo, and its families.

Most have fixed dims. Some of each are freed: equal sizes of a node test become one symbol, the first dim of a network's
inputs another; the sizes that were fixed are those with which the model is known to run.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

import models
from bench.judge import all_nodes
from models import families

Feed = dict[str, Any]

SMALL = (
    "mlp_tiny", "dscnn_kws", "gru_op", "gru_unrolled", "loop_if_script", "lstm_bi_op", "squeezenet1_1",
    "mobilenet_v2", "mobilenet_v2_legacy", "light_shufflenet", "light_squeezenet",
)  # fmt: skip
MIDDLE = ("resnet18", "resnet18_fp16", "resnet18_legacy", "resnet18_qdq", "unet_own", "bert_small_dynquant")
LARGE = ("t5_small_encoder", "llama_small_prefill", "clip_text", "convnext_tiny", "vit_s16_legacy", "swin_tiny")
SHARES = (("node test", 0.3), ("freed node test", 0.2), ("small", 0.2), ("freed small", 0.1), ("family", 0.1),
          ("middle", 0.08), ("large", 0.02))  # fmt: skip
FREED = frozenset({"freed node test", "freed small"})
GROUPS = {"small": SMALL, "freed small": SMALL, "family": families.names(), "middle": MIDDLE, "large": LARGE}
# Results that no two runs share, and operators whose models only train.
NOT_REPEATABLE = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


@dataclass(frozen=True, slots=True)
class Source:
    """A good model, without declared types of inner values, and inputs that were recorded with it."""

    name: str
    group: str
    model: onnx.ModelProto
    recorded: tuple[Feed, ...]
    sizes: dict[str, int]  # of dynamic dims, with which the model is known to run
    most_feeds: int
    endless: bool  # an integer may be the number of trips of a loop


def draw(rng: random.Random) -> tuple[str, str]:
    """The group and the name of a source."""
    (group,) = rng.choices([group for group, _ in SHARES], [share for _, share in SHARES])
    return group, rng.choice(GROUPS[group] if group in GROUPS else _test_names())


def source(group: str, name: str) -> Source:
    """The source of that group and name."""
    feeds: tuple[Feed, ...] = ()
    sizes: dict[str, int] = {}
    if group == "family":
        model, sizes, most = families.build(name), families.sizes(name), 14
    elif group in GROUPS:
        model, sizes = models.load(name), models.sizes(name)
        most = 14 if name in SMALL else 8 if name in MIDDLE else 4
        if group == "freed small":
            sizes = sizes | _freed(model, leading=True)
    else:
        test, most = _tests()[name], 40
        model = onnx.ModelProto()
        model.CopyFrom(test.model)
        names = [value.name for value in model.graph.input]
        feeds = tuple(dict(zip(names, map(_array, inputs), strict=False)) for inputs, _ in test.data_sets)
        if group == "freed node test":
            sizes = _freed(model, leading=False)
    for graph in graphs(model.graph):
        graph.ClearField("value_info")  # a change may give inner values other dims
    endless = any(node.op_type == "Loop" for node in all_nodes(model))
    return Source(name, group, model, feeds, sizes, most, endless)


def _freed(model: onnx.ModelProto, *, leading: bool) -> dict[str, int]:
    """Make fixed dims of the inputs symbols, in place, or only the first of each; their sizes by symbol."""
    sizes: dict[str, int] = {}
    given = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim in dims[:1] if leading else dims:
            if value.name not in given and dim.dim_value > (0 if leading else 1):
                symbol = f"d{dim.dim_value}"
                sizes[symbol], dim.dim_param = dim.dim_value, symbol
    if sizes:
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
    return sizes


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs(inner)


def session(model: onnx.ModelProto, *, optimized: bool = False) -> ort.InferenceSession:
    """ONNX Runtime on one thread, as the model stands or optimized."""
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@lru_cache(maxsize=1)
def _tests() -> dict[str, Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests overflow on purpose
        tests = load_model_tests(kind="node")
    return {
        test.name: test
        for test in tests
        if test.model is not None and not {node.op_type for node in all_nodes(test.model)} & NOT_REPEATABLE
    }


@lru_cache(maxsize=1)
def _test_names() -> tuple[str, ...]:
    return tuple(sorted(_tests()))


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value

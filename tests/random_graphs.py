"""Random models for property tests: valid by construction, small, mixing what exporters write.

Every value's dims are known to the builder for the leading dim N = 4; with `dynamic`, N is symbolic in the model, and
operators are chosen so that they hold for any N.
"""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

N = 4
UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Identity", "Erf", "Softplus", "Floor", "Elu")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
REDUCE = ("ReduceMean", "ReduceMax", "ReduceSum")


class Builder:
    """Grows a graph node by node from the choices that `draw` makes."""

    def __init__(self, draw: st.DrawFn, dynamic: bool) -> None:
        self.draw = draw
        self.dynamic = dynamic
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: list[tuple[str, tuple[int, ...]]] = []
        self.count = 0
        self.generator = np.random.default_rng(draw(st.integers(0, 1000)))

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, array: np.ndarray) -> str:
        """An initializer or a Constant node."""
        name = self.name()
        tensor = numpy_helper.from_array(array, name)
        if self.draw(st.booleans()):
            self.initializers.append(tensor)
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.generator.standard_normal(shape).astype(np.float32))

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, dtype=np.int64))

    def node(
        self, op_type: str, inputs: list[str], shape: tuple[int, ...], outputs: int = 1, **attributes: object
    ) -> str:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=f"{op_type}_{self.count}", **attributes))
        self.values.extend((name, shape) for name in names)
        return names[0]

    def pick(self, minimum_rank: int = 1, maximum_rank: int = 4) -> tuple[str, tuple[int, ...]] | None:
        usable = [v for v in self.values if minimum_rank <= len(v[1]) <= maximum_rank and np.prod(v[1]) <= 4096]
        return self.draw(st.sampled_from(usable)) if usable else None

    def leads_with_n(self, value: str) -> bool:
        """All values keep N in front: that is the builder's rule."""
        return True

    def grow(self) -> None:
        """Add one operator."""
        kind = self.draw(st.sampled_from(sorted(_STEPS)))
        _STEPS[kind](self)


def _unary(b: Builder) -> None:
    picked = b.pick()
    if picked:
        b.node(b.draw(st.sampled_from(UNARY)), [picked[0]], picked[1])


def _binary_constant(b: Builder) -> None:
    picked = b.pick()
    if not picked:
        return
    name, shape = picked
    form = b.draw(st.integers(0, 3))
    if form == 0:
        other = b.constant(np.array(b.draw(st.sampled_from([0.0, 1.0, 2.0, -1.0, 0.5])), dtype=np.float32))
    elif form == 1:
        other = b.weight(shape[-1])
    elif form == 2 and len(shape) == 4:
        other = b.weight(shape[1], 1, 1)
    else:
        other = b.weight(1)
    operands = [name, other] if b.draw(st.booleans()) else [other, name]
    kind = b.draw(st.sampled_from((*BINARY, "Div")))
    b.node(kind, operands, shape)


def _binary(b: Builder) -> None:
    picked = b.pick()
    if not picked:
        return
    same = [value for value in b.values if value[1] == picked[1]]
    other = b.draw(st.sampled_from(same))
    b.node(b.draw(st.sampled_from(BINARY)), [picked[0], other[0]], picked[1])


def _matmul(b: Builder) -> None:
    picked = b.pick(2)
    if picked:
        width = b.draw(st.sampled_from([3, 5]))
        b.node("MatMul", [picked[0], b.weight(picked[1][-1], width)], (*picked[1][:-1], width))


def _gemm(b: Builder) -> None:
    picked = b.pick(2, 2)
    if picked:
        width = b.draw(st.sampled_from([3, 5]))
        flag = b.draw(st.integers(0, 1))
        shape = (width, picked[1][1]) if flag else (picked[1][1], width)
        inputs = [picked[0], b.weight(*shape)]
        if b.draw(st.booleans()):
            inputs.append(b.weight(width))
        b.node("Gemm", inputs, (picked[1][0], width), transB=flag, alpha=b.draw(st.sampled_from([1.0, 0.5])))


def _convolution(b: Builder) -> None:
    picked = b.pick(4)
    if not picked or picked[1][2] < 3 or picked[1][3] < 3:
        return
    name, shape = picked
    channels = b.draw(st.sampled_from([2, 4]))
    padding = b.draw(st.integers(0, 1))
    inputs = [name, b.weight(channels, shape[1], 3, 3)]
    if b.draw(st.booleans()):
        inputs.append(b.weight(channels))
    out = (shape[0], channels, shape[2] - 2 + 2 * padding, shape[3] - 2 + 2 * padding)
    made = b.node("Conv", inputs, out, kernel_shape=[3, 3], pads=[padding] * 4)
    if b.draw(st.booleans()):
        _normalise(b, made, out)


def _normalise(b: Builder, name: str, shape: tuple[int, ...]) -> None:
    channels = shape[1]
    variance = b.constant(b.generator.uniform(0.5, 2.0, channels).astype(np.float32))
    b.node("BatchNormalization", [name, b.weight(channels), b.weight(channels), b.weight(channels), variance], shape)


def _batch_normalisation(b: Builder) -> None:
    picked = b.pick(2)
    if picked:
        _normalise(b, *picked)


def _pad(b: Builder) -> None:
    picked = b.pick(4)
    if not picked:
        return
    amount = b.draw(st.integers(0, 1))
    shape = picked[1]
    pads = b.ints(0, 0, amount, amount, 0, 0, amount, amount)
    b.node("Pad", [picked[0], pads], (*shape[:2], shape[2] + 2 * amount, shape[3] + 2 * amount))


def _pool(b: Builder) -> None:
    picked = b.pick(4)
    if picked and min(picked[1][2:]) >= 2:
        kind = b.draw(st.sampled_from(["MaxPool", "AveragePool"]))
        shape = picked[1]
        b.node(kind, [picked[0]], (*shape[:2], shape[2] - 1, shape[3] - 1), kernel_shape=[2, 2])


def _transpose(b: Builder) -> None:
    picked = b.pick(2)
    if not picked:
        return
    rest = b.draw(st.permutations(range(1, len(picked[1]))))
    perm = [0, *rest]
    b.node("Transpose", [picked[0]], tuple(picked[1][axis] for axis in perm), perm=perm)


def _reshape(b: Builder) -> None:
    """To [N, rest]: with -1, with 0, or with a target computed from Shape."""
    picked = b.pick(2)
    if not picked:
        return
    name, shape = picked
    rest = int(np.prod(shape[1:]))
    form = b.draw(st.integers(0, 2))
    if form == 0:
        target = b.ints(-1, rest)
    elif form == 1:
        target = b.ints(0, -1)
    else:
        whole, batch = b.name(), b.name()
        b.nodes.append(helper.make_node("Shape", [name], [whole]))
        b.nodes.append(helper.make_node("Gather", [whole, b.ints(0)], [batch], axis=0))
        target = b.name()
        b.nodes.append(helper.make_node("Concat", [batch, b.ints(rest)], [target], axis=0))
    b.node("Reshape", [name, target], (shape[0], rest))


def _unsqueeze(b: Builder) -> None:
    picked = b.pick(1, 3)
    if not picked:
        return
    axis = b.draw(st.integers(1, len(picked[1])))
    shape = (*picked[1][:axis], 1, *picked[1][axis:])
    made = b.node("Unsqueeze", [picked[0], b.ints(axis)], shape)
    if b.draw(st.booleans()):
        b.node("Squeeze", [made, b.ints(axis)], picked[1])


def _slice(b: Builder) -> None:
    picked = b.pick(2)
    if not picked:
        return
    axis = b.draw(st.integers(1, len(picked[1]) - 1))
    size = picked[1][axis]
    start = b.draw(st.integers(0, size - 1))
    end = b.draw(st.sampled_from([size, size + 7, 2**62]))
    shape = (*picked[1][:axis], size - start, *picked[1][axis + 1 :])
    b.node("Slice", [picked[0], b.ints(start), b.ints(end), b.ints(axis)], shape)


def _concat(b: Builder) -> None:
    picked = b.pick(2)
    if picked:
        shape = picked[1]
        b.node("Concat", [picked[0], picked[0]], (*shape[:-1], 2 * shape[-1]), axis=len(shape) - 1)


def _split_concat(b: Builder) -> None:
    picked = b.pick(2)
    if not picked or picked[1][-1] < 2:
        return
    name, shape = picked
    axis = len(shape) - 1
    first = b.draw(st.integers(1, shape[-1] - 1))
    left, right = b.name(), b.name()
    b.nodes.append(helper.make_node("Split", [name, b.ints(first, shape[-1] - first)], [left, right], axis=axis))
    order = [left, right] if b.draw(st.booleans()) else [right, left]
    b.node("Concat", order, shape, axis=axis)


def _clip(b: Builder) -> None:
    picked = b.pick()
    if picked:
        low = b.constant(np.array(b.draw(st.sampled_from([-1.0, 0.0])), dtype=np.float32))
        high = b.constant(np.array(1.5, dtype=np.float32))
        b.node("Clip", [picked[0], low, high], picked[1])


def _cast(b: Builder) -> None:
    picked = b.pick()
    if not picked:
        return
    middle = b.name()
    kind = b.draw(st.sampled_from([TensorProto.DOUBLE, TensorProto.FLOAT]))
    b.nodes.append(helper.make_node("Cast", [picked[0]], [middle], to=kind))
    b.node("Cast", [middle], picked[1], to=TensorProto.FLOAT)


def _reduce(b: Builder) -> None:
    picked = b.pick(2)
    if not picked:
        return
    name, shape = picked
    kind = b.draw(st.sampled_from(REDUCE))
    keep = b.draw(st.integers(0, 1))
    axis = len(shape) - 1
    out = (*shape[:-1], 1) if keep else shape[:-1]
    if kind == "ReduceSum":
        made = b.node(kind, [name, b.ints(axis)], out, keepdims=keep)
    else:
        made = b.node(kind, [name], out, keepdims=keep, axes=[axis])
    if keep and b.draw(st.booleans()):
        b.node("Squeeze", [made, b.ints(axis)], shape[:-1])


def _where(b: Builder) -> None:
    picked = b.pick()
    if not picked:
        return
    flag = b.constant(np.array(b.draw(st.booleans())))
    b.node("Where", [flag, picked[0], b.weight(1)], picked[1])


def _expand(b: Builder) -> None:
    """A constant expanded and added: folded, or kept as a splat."""
    picked = b.pick(2)
    if picked:
        wide = b.name()
        b.nodes.append(helper.make_node("Expand", [b.weight(1), b.ints(*picked[1][1:])], [wide]))
        b.node("Add", [picked[0], wide], picked[1])


def _softmax(b: Builder) -> None:
    picked = b.pick(2)
    if picked:
        b.node("Softmax", [picked[0]], picked[1], axis=-1)


_STEPS = {
    "batch_normalisation": _batch_normalisation, "binary": _binary, "binary_constant": _binary_constant,
    "cast": _cast, "clip": _clip, "concat": _concat, "convolution": _convolution, "expand": _expand, "gemm": _gemm,
    "matmul": _matmul, "pad": _pad, "pool": _pool, "reduce": _reduce, "reshape": _reshape, "slice": _slice,
    "softmax": _softmax, "split_concat": _split_concat, "transpose": _transpose, "unary": _unary,
    "unsqueeze": _unsqueeze, "where": _where,
}  # fmt: skip


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """A model of 3 to 16 operators with one input, every result returned, at opset 17."""
    dynamic = draw(st.booleans())
    builder = Builder(draw, dynamic)
    leading: int | str = "N" if dynamic else N
    image = draw(st.booleans())
    shape: tuple[int, ...] = (N, 2, 6, 6) if image else (N, 6)
    builder.values.append(("x", shape))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [leading, *shape[1:]])]
    for _ in range(draw(st.integers(3, 16))):
        builder.grow()
    made = [value for value in builder.values if value[0] != "x"]
    if not made:
        builder.node("Relu", ["x"], shape)
        made = builder.values[-1:]
    # What nothing reads is returned, so that no operator is dead; now and then something in between is returned too.
    read = {name for node in builder.nodes for name in node.input}
    chosen = {value for value in made if value[0] not in read}
    if draw(st.booleans()):
        chosen.add(draw(st.sampled_from(made)))
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [leading, *dims[1:]]) for name, dims in sorted(chosen)
    ]
    graph = helper.make_graph(builder.nodes, "random", inputs, outputs, builder.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

"""A network under construction: nodes one after the other, and seeded weights with the scales of trained networks.

A convolution or product draws its weights so that what it gives has about the variance of what it reads; in front of a
batch normalization each channel has a variance of its own, which the normalization knows, as after training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IR_VERSIONS = {14: 7, 17: 8, 21: 10}  # what exporters write beside an opset
RELU, SILU = 2.0, 2.8  # variance that weights make up for, behind these activations
LEAST_VARIANCE, MOST_VARIANCE = 0.05, 3.0  # of the channels in front of a batch normalization

Dims = Sequence[int | str]
Array = np.ndarray


class Network:
    """Nodes, weights and inputs of one model; every method that adds nodes returns the name of the result."""

    def __init__(
        self, name: str, seed: int, *, opset: int = 17, dtype: type = np.float32, legacy: bool = False
    ) -> None:
        """`legacy` writes small constants as nodes, which the TorchScript exporter does."""
        self.name, self.seed, self.opset, self.dtype, self.legacy = name, seed, opset, dtype, legacy
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, dims: Dims, dtype: type | None = None) -> str:
        """An input of the model; the network's own type unless another is given."""
        self._inputs.append(_port(name, dims, dtype or self.dtype))
        return name

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        return self.ops(operator, *inputs, outputs=1, **attributes)[0]

    def ops(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """A node with several outputs."""
        number = len(self._nodes)
        names = [f"{operator.lower()}_{number}" + (f"_{one}" if outputs > 1 else "") for one in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, name=f"node_{number}", **attributes))
        return names

    def ints(self, *values: int) -> str:
        """A constant of int64, as shapes and axes are."""
        return self.small(np.array(values, np.int64))

    def number(self, value: float) -> str:
        """A scalar constant of the network's type."""
        return self.small(np.array(value, self.dtype))

    def small(self, array: Array) -> str:
        """A constant that is not trained."""
        if self.legacy:
            return self.op("Constant", value=numpy_helper.from_array(array))
        return self.tensor(array, "const")

    def tensor(self, array: Array, kind: str = "weight") -> str:
        """An initializer."""
        name = f"{kind}_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def generator(self) -> np.random.Generator:
        """Numbers for the next tensor, which do not depend on the sizes of those before."""
        return np.random.default_rng([self.seed, len(self._weights)])

    def normal(self, dims: Sequence[int], deviation: float, mean: float = 0.0) -> str:
        """Trained numbers around a mean."""
        return self.tensor((self.generator().standard_normal(dims) * deviation + mean).astype(self.dtype))

    def conv(
        self, x: str, inner: int, outer: int, kernel: int = 1, stride: int = 1, *, groups: int = 1,
        gain: float = RELU, bias: bool = True, spread: Array | None = None,
    ) -> str:  # fmt: skip
        """A convolution that keeps its extent up to the stride; `spread` are variances of its channels."""
        fan = inner // groups * kernel**2
        drawn = self.generator().standard_normal((outer, inner // groups, kernel, kernel)) * np.sqrt(gain / fan)
        if spread is not None:
            drawn *= np.sqrt(spread)[:, None, None, None]
        weight = self.tensor(drawn.astype(self.dtype))
        biases = (self.normal([outer], 0.1),) if bias else ()
        return self.op(
            "Conv", x, weight, *biases, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4,
            group=groups, dilations=[1, 1],
        )  # fmt: skip

    def conv_norm(
        self, x: str, inner: int, outer: int, kernel: int = 1, stride: int = 1, *, groups: int = 1, gain: float = RELU
    ) -> str:
        """A convolution without bias and its batch normalization."""
        generator = self.generator()
        variance = np.exp(generator.uniform(np.log(LEAST_VARIANCE), np.log(MOST_VARIANCE), outer))
        mean = generator.standard_normal(outer) * np.sqrt(variance) * 0.3
        x = self.conv(x, inner, outer, kernel, stride, groups=groups, gain=gain, bias=False, spread=variance)
        scale, shift = self.normal([outer], 0.2, 1.0), self.normal([outer], 0.2)
        statistics = [self.tensor(one.astype(self.dtype)) for one in (mean, variance)]
        return self.op("BatchNormalization", x, scale, shift, *statistics, epsilon=1e-5, momentum=0.9)

    def gemm(self, x: str, inner: int, outer: int, gain: float = RELU) -> str:
        """A fully connected layer over two dims."""
        return self.op(
            "Gemm", x, self.normal([outer, inner], (gain / inner) ** 0.5), self.normal([outer], 0.1), transB=1
        )

    def linear(self, x: str, inner: int, outer: int, gain: float = 1.0) -> str:
        """A fully connected layer over any dims."""
        product = self.op("MatMul", x, self.normal([inner, outer], (gain / inner) ** 0.5))
        return self.op("Add", self.normal([outer], 0.1), product)

    def layer_norm(self, x: str, width: int, epsilon: float = 1e-5) -> str:
        """Layer normalization as an operator, over the last dim."""
        scale, shift = self.normal([width], 0.2, 1.0), self.normal([width], 0.1)
        return self.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=epsilon)

    def silu(self, x: str) -> str:
        """x times its sigmoid."""
        return self.op("Mul", x, self.op("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """The exact one, by its error function."""
        erf = self.op("Erf", self.op("Div", x, self.number(2**0.5)))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.number(1.0))), self.number(0.5))

    def heads(self, x: str, heads: int, width: int, order: Sequence[int] = (0, 2, 1, 3)) -> str:
        """[batch, sequence, heads * width] with the heads as a dim of their own."""
        return self.op("Transpose", self.op("Reshape", x, self.ints(0, 0, heads, width)), perm=order)

    def model(self, **outputs: tuple[str, Dims]) -> onnx.ModelProto:
        """The model; each output is a value and the dims that it is declared with."""
        for name, (value, _) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [value], [name], name=f"give_{name}"))
        ports = [_port(name, dims, self.dtype) for name, (_, dims) in outputs.items()]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, ports, self._weights)
        return helper.make_model(
            graph, ir_version=IR_VERSIONS[self.opset], opset_imports=[helper.make_opsetid("", self.opset)]
        )


def _port(name: str, dims: Dims, dtype: type) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(dims))

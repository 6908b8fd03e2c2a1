"""Products and convolutions of bytes whose weights and numbers are constants, with the elementwise nodes behind them.

What the kernels for bytes do not take (weights, scales or zero points of a run) is refused here, and computed by plain
loops. Images lie with their channels side by side between such layers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import attribute_of, float_attribute, input_at, int_attribute, ints_attribute, required_input
from graphopt.model.operators.linear import requantized
from graphopt.model.operators.padding import padding
from graphopt.model.operators.quantized import BIAS
from graphopt.program.regions.copies import dense
from graphopt.program.regions.fusion import Tree, root_of
from graphopt.program.regions.images.image import Image, layout_of
from graphopt.program.regions.images.sources import ImageReader, result_layout
from graphopt.program.regions.products import Apart, flattener
from graphopt.program.regions.reader import Reader
from graphopt.program.regions.scope import Places, Scope
from kernels.dtype import DType
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution, whole
from kernels.templates.epilogue import ACCUMULATED_INTEGER, Epilogue
from kernels.templates.quantized.problem import QuantizedConvolution
from kernels.templates.quantized.product import QUANTIZED_PRODUCT, QuantizedProduct
from kernels.templates.quantized.ways import QUANTIZED
from kernels.tensor.expression import Buffer, Expression, Index, Number, index

Array = npt.NDArray[Any]  # of integers, or of the floats that scales are
_MOST = 2.0**30  # of a bias, in steps of the sums
_QUANTIZES = ("QLinearMatMul", "QLinearConv", "QGemm")
# Where operands, scales and zero points stand: of the first, of the second, of the result; then the bias.
_PLACES = {"QLinearMatMul": (0, 1, 2, 3, 4, 5, 6, 7, 8), "QLinearConv": (0, 1, 2, 3, 4, 5, 6, 7, 8),
           "QGemm": (0, 1, 2, 3, 4, 5, 7, 8, 6)}  # fmt: skip


class _Operands:
    """The operands of such a node by what they are."""

    def __init__(self, scope: Scope, node: ir.Node) -> None:
        self._scope, self.node = scope, node
        self.quantizes = node.op_type in _QUANTIZES
        at = _PLACES[node.op_type] if self.quantizes else (0, None, 2, 1, None, 3)
        self._at = dict(zip(("a", "a scale", "a zero", "b", "b scale", "b zero", "scale", "zero", "bias"), at,
                            strict=False))  # fmt: skip
        self.a = required_input(node, 0)
        self.b = self.constant("b")
        self.a_zero, self.b_zero = self.numbers("a zero"), self.numbers("b zero")

    def constant(self, name: str) -> Array:
        """An operand that must be known."""
        found = self._scope.constant(required_input(self.node, self._at[name] or 0))
        if found is None:
            raise NotLowered(f"{self.node.op_type} '{self.node.name}' has a {name} that is known only when it runs.")
        return found

    def numbers(self, name: str) -> Array:
        """A scale or zero point as a vector; 0 where it is left out."""
        at = self._at[name]
        missing = at is None or input_at(self.node, at) is None
        return np.zeros(1, np.int32) if missing else self.constant(name).reshape(-1)

    def finished(self, columns: int, column: Index, places: dict[str, Array]) -> Expression:
        """The sums, in the scale of the result where the node asks for it; fills in the operands that this reads."""
        total: Expression = ACCUMULATED_INTEGER[()]
        if not self.quantizes:
            return total
        a, b, y = (self.numbers(one) for one in ("a scale", "b scale", "scale"))
        zero = self.numbers("zero")
        if a.size != 1 or y.size != 1 or zero.size != 1 or b.size not in (1, columns):
            raise NotLowered(f"{self.node.op_type} '{self.node.name}' has a scale for each row.")
        scale = a.astype(np.float64) * b * float_attribute(self.node, "alpha", 1.0)
        exact = scale / y
        if y.dtype != np.float32:  # by ONNX's rule the multiplier has the type of the scales
            exact = np.asarray(a * b / y, np.float64)
        at, beyond, worth = self._at["bias"], None, attribute_of(self.node, BIAS)
        bias = np.zeros(1, np.int32) if at is None or input_at(self.node, at) is None else self.constant("bias")
        if worth is not None:
            steps = worth.as_tensor().numpy() / scale
            if not np.abs(steps).max(initial=0.0) < _MOST:
                raise NotLowered(f"{self.node.op_type} '{self.node.name}' has a bias beyond all sums.")
            bias, left = np.rint(steps).astype(np.int32), ((steps - np.rint(steps)) * exact).astype(np.float32)
            beyond = self._column("left", left, columns, column, places) if left.any() else None
        if bias.any():
            total = total + self._column("bias", bias.astype(np.int32), columns, column, places)
        high = exact.astype(np.float32)
        low = (exact - high).astype(np.float32)
        kind = self._scope.dtype(self.node.outputs[0])
        first, second = (
            self._column(name, one, columns, column, places) for name, one in (("scale", high), ("rest", low))
        )
        return requantized(total, (first, second), Number(int(zero[0]), kind), kind, beyond)

    def _column(self, name: str, array: Array, columns: int, column: Index, places: dict[str, Array]) -> Expression:
        """A number for each column, or one for all."""
        array, kind = array.reshape(-1), DType.of(array.dtype)
        if array.size == 1:
            return Number(array[0].item(), kind)
        if array.size != columns:
            raise NotLowered(f"{self.node.op_type} '{self.node.name}' has a {name} for each row.")
        places[name] = array
        return Buffer(name, kind, (columns,))[column]


def lower_bytes(scope: Scope, tree: Tree) -> bool:
    """The region of a tree whose anchor sums bytes; False for any other. Raises NotLowered where operands are none."""
    lowering = _LOWERINGS.get(tree.anchor.op_type) if tree.anchor is not None else None
    if lowering is None:
        return False
    lowering(scope, tree)
    return True


def _lower_product(scope: Scope, tree: Tree) -> None:
    node, root = tree.anchor, root_of(tree).outputs[0]
    assert node is not None, "the tree of a product has one"
    given = _Operands(scope, node)
    transposed = bool(int_attribute(node, "transB", 0))
    shape, b = scope.shape(given.a), given.b.T if transposed else given.b
    if b.ndim != 2 or len(shape) < 1 or int_attribute(node, "transA", 0):
        raise NotLowered(f"{node.op_type} '{node.name}' has a matrix for each of a batch.")
    (depth, columns), rows = b.shape, prod(shape[:-1])
    if given.a_zero.size != 1 or given.b_zero.size not in (1, columns):
        raise NotLowered(f"{node.op_type} '{node.name}' has a zero point for each row.")
    product = QuantizedProduct(
        rows, columns, depth, a_dtype=scope.dtype(given.a), b_dtype=DType.of(b.dtype), a_zero=int(given.a_zero[0]),
        b_zero=tuple(int(one) for one in given.b_zero),
    )  # fmt: skip
    known: dict[str, Array] = {}
    sums = given.finished(columns, product.column, known)
    flat = flattener((rows, columns))
    reader = Reader(scope, tree, flat)
    reader.accumulated[node.outputs[0]] = sums
    value = sums
    if root is not node.outputs[0]:
        try:
            value = reader.value(root, (index(product.row), product.column))
        except Apart as error:
            raise NotLowered(f"what follows {node.op_type} '{node.name}' has no rows to be counted.") from error
    product = QuantizedProduct(
        rows, columns, depth, a_dtype=product.a_dtype, b_dtype=product.b_dtype, a_zero=product.a_zero,
        b_zero=product.b_zero, epilogue=Epilogue(value),
    )  # fmt: skip
    source = dense(scope, given.a)
    kernel = scope.kernel(QUANTIZED_PRODUCT, product)
    places: Places = {
        **reader.buffers, **_kept(scope, node, known), "a": source.buffer,
        "b": scope.weight("weights", node.outputs[0].name, b, kernel.operand("b")), "c": scope.result(root).buffer,
    }  # fmt: skip
    scope.add(kernel, places, (node, *tree.in_order))


def _lower_convolution(scope: Scope, tree: Tree) -> None:
    node, root = tree.anchor, root_of(tree).outputs[0]
    assert node is not None, "the tree of a convolution has one"
    given = _Operands(scope, node)
    (_, outputs, *out), rank = scope.shape(node.outputs[0]), given.b.ndim - 2
    if rank > 3 or given.a_zero.size != 1 or given.b_zero.size not in (1, outputs):
        raise NotLowered(f"{node.op_type} '{node.name}' is of {rank} spatial dims.")
    strides, dilations = (ints_attribute(node, one) or (1,) * rank for one in ("strides", "dilations"))
    reach = [step * (taps - 1) + 1 for step, taps in zip(dilations, given.b.shape[2:], strict=True)]
    before, _ = padding(node, scope.shape(given.a)[2:], out, reach, strides)
    source = _image(scope, given.a)
    geometry = Convolution(
        source.layout, _result_layout(scope, root), whole(given.b.shape[2:], 1), whole(strides, 1),
        whole(dilations, 1), whole(before, 0), int_attribute(node, "group", 1),
    )  # fmt: skip
    problem = QuantizedConvolution(
        geometry, source.dtype, DType.of(given.b.dtype), int(given.a_zero[0]), tuple(int(one) for one in given.b_zero)
    )
    known: dict[str, Array] = {}
    sums = given.finished(outputs, geometry.channel, known)
    reader = ImageReader(scope, tree, geometry)
    reader.accumulated[node.outputs[0]] = sums
    value = sums if root is node.outputs[0] else reader.value(root, reader.at(rank + 2))
    kernel = scope.kernel(QUANTIZED, problem.with_epilogue(value))
    places: Places = {
        **reader.buffers, **_kept(scope, node, known), "x": source.place,
        "weights": scope.weight("weights", node.outputs[0].name, given.b, kernel.operand("weights")),
        "y": scope.image(root, geometry.output).place,
    }  # fmt: skip
    scope.add(kernel, places, (node, *tree.in_order))


def _kept(scope: Scope, node: ir.Node, known: dict[str, Array]) -> Places:
    """The numbers of columns as constants of the program."""
    return {
        name: scope.keep(name, node.outputs[0].name, array, DType.of(array.dtype)).buffer
        for name, array in known.items()
    }


def _image(scope: Scope, value: ir.Value) -> Image:
    """Bytes as images whose channels lie side by side, or each in a plane of its own where they lie so."""
    found = scope.images.get(value) or Image.of_view(scope.place(value)) or Image.of_view(dense(scope, value))
    assert found is not None, "dense dims of images"
    if found.layout.order != "NCHWc":
        return found
    layout = layout_of(found.shape, "NHWC")
    buffer = scope.temporary("turned", value.name, found.dtype.bytes * layout.elements)
    made = Image(buffer, found.dtype, found.shape, layout)
    scope.convert(found, made)
    scope.place(value)  # those who want strides still find it where it was
    scope.images[value] = made
    return made


def _result_layout(scope: Scope, value: ir.Value) -> Layout:
    found = result_layout(scope, value)
    return layout_of(scope.shape(value), "NHWC") if found.order == "NCHWc" else found


_LOWERINGS: dict[str, Callable[[Scope, Tree], None]] = {
    "MatMulInteger": _lower_product, "QLinearMatMul": _lower_product, "QGemm": _lower_product,
    "ConvInteger": _lower_convolution, "QLinearConv": _lower_convolution,
}  # fmt: skip

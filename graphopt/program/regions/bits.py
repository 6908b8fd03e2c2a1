"""MatMulNBits of com.microsoft with constant weights: a product that widens codes of a few bits."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import input_at, int_attribute, required_input
from graphopt.program.regions.buffer import Buffer as ProgramBuffer
from graphopt.program.regions.copies import dense
from graphopt.program.regions.products import widened
from graphopt.program.regions.scope import Scope
from kernels.dtype import DType
from kernels.templates.bits import BitsProduct
from kernels.templates.bits_any import BITS_OF_ANY_ROWS, of_one_row
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.tensor.expression import Buffer, Cast, Expression


def lower_bits(scope: Scope, node: ir.Node) -> None:
    """The region of a MatMulNBits; raises NotLowered where a run gives its weights, or they are in another order."""
    a, kind = required_input(node, 0), scope.dtype(node.outputs[0])
    given = [None if input_at(node, at) is None else scope.constant(required_input(node, at)) for at in range(1, 4)]
    codes, scales, zeros = given
    if codes is None or scales is None or (zeros is None and input_at(node, 3) is not None) or input_at(node, 4):
        raise NotLowered(f"MatMulNBits '{node.name}' has weights that a run gives, or in an order of their own.")
    if kind not in (DType.F32, DType.F16, DType.BF16):
        raise NotLowered(f"MatMulNBits '{node.name}' is of {kind.value}, which its template does not compute.")
    depth, columns, rows = int_attribute(node, "K", 0), int_attribute(node, "N", 0), prod(scope.shape(a)[:-1])
    product = BitsProduct(
        rows, columns, depth, int_attribute(node, "bits", 4), int_attribute(node, "block_size", 32),
        "middle" if zeros is None else "codes" if zeros.dtype == np.uint8 else "floats",
    )  # fmt: skip
    if 0 in (rows, columns, depth):
        raise NotLowered(f"MatMulNBits '{node.name}' has an empty matrix.")
    places: dict[str, ProgramBuffer] = {}
    sums: Expression = ACCUMULATED[()]
    if input_at(node, 5) is not None:
        bias = required_input(node, 5)
        places["bias"] = dense(scope, bias).buffer
        added: Expression = Buffer("bias", scope.dtype(bias), (columns,))[product.gemm.column]
        sums = sums + (added if added.dtype is DType.F32 else Cast(DType.F32, added))
    value = sums if kind is DType.F32 else Cast(kind, sums)
    product = BitsProduct(rows, columns, depth, product.bits, product.block, product.zeros, Epilogue(value))
    kernel = scope.kernel(of_one_row(product, scope.target) if rows == 1 else BITS_OF_ANY_ROWS, product)
    numbers = {"b": codes, "scales": np.asarray(scales, np.float32)}
    if zeros is not None:
        numbers["zeros"] = zeros if product.zeros == "codes" else np.asarray(zeros, np.float32)
    for name, array in numbers.items():
        places[name] = scope.weight(name, node.outputs[0].name, array, kernel.operand(name))
    source = dense(scope, a) if scope.dtype(a) is DType.F32 else widened(scope, a)
    scope.add(kernel, {"a": source.buffer, "c": scope.result(node.outputs[0]).buffer, **places}, (node,))

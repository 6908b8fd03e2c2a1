"""Which com.microsoft operators the installed ONNX Runtime really has on the CPU, and for which element types.

Asked of ONNX Runtime itself: an operator may have a schema for float16 and a kernel for float32 only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx_ir as ir
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from graphopt.rewrite.rule import Match

DOMAIN = "com.microsoft"
PROVIDER = "CPUExecutionProvider"
# ONNX Runtime's words for the element types a rule asks about.
WORDS: Mapping[ir.DataType, str] = {
    ir.DataType.FLOAT: "tensor(float)",
    ir.DataType.FLOAT16: "tensor(float16)",
    ir.DataType.BFLOAT16: "tensor(bfloat16)",
    ir.DataType.DOUBLE: "tensor(double)",
    ir.DataType.INT8: "tensor(int8)",
    ir.DataType.UINT8: "tensor(uint8)",
}


@cache
def kernels() -> Mapping[str, frozenset[str]]:
    """Operator -> the types that its kernels take for their first type parameter (T or T1), and its schema allows."""
    allowed = {
        schema.name: {word for constraint in schema.type_constraints for word in constraint.allowed_type_strs}
        for schema in runtime.get_all_operator_schema()
        if schema.domain == DOMAIN
    }
    found: dict[str, set[str]] = {}
    for kernel in runtime.get_all_opkernel_def():
        if kernel.domain != DOMAIN or kernel.provider != PROVIDER:
            continue
        constraints = kernel.type_constraints
        types = constraints.get("T") or constraints.get("T1") or ()
        found.setdefault(kernel.op_name, set()).update(allowed[kernel.op_name].intersection(types))
    return {name: frozenset(types) for name, types in found.items()}


def require_kernel(match: Match, op_type: str, kind: ir.DataType) -> None:
    """Refuse unless ONNX Runtime computes the operator on a CPU for this element type."""
    types = kernels().get(op_type)
    match.require(types is not None, f"this ONNX Runtime has no {op_type} on the CPU")
    assert types is not None, "as required"
    match.require(WORDS.get(kind) in types, f"this ONNX Runtime has no {op_type} for {kind.name.lower()} on the CPU")

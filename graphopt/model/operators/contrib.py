"""Operators of com.microsoft that are functions of their inputs alone; the rest of that domain is not known here."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model.known import Knowledge
from graphopt.model.operators.record import Operator
from graphopt.model.operators.shapes import Result

DOMAIN = "com.microsoft"


def _like_first(node: ir.Node, facts: Knowledge) -> Result:
    """Every result has the type and dims of the first operand."""
    first = node.inputs[0]
    return None if first is None else (facts.known(first),) * len(node.outputs)


OPERATORS = (
    *(Operator(name=name, domain=DOMAIN, shape=_like_first) for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")),
    *(
        Operator(name=name, domain=DOMAIN)
        for name in (
            "FusedConv", "FusedGemm", "FusedMatMul", "MultiHeadAttention", "SkipLayerNormalization",
            "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization", "DequantizeLinear", "QuantizeLinear",
            "QLinearAdd", "QLinearMul", "QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul", "NhwcConv", "Inverse",
        )
    ),
)  # fmt: skip

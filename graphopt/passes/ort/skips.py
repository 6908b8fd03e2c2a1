"""A sum and the normalization behind it as one operator, whose other output is the sum.

Asked for at level 3 only: ONNX Runtime's kernel for the pair is slower than its two operators, about seven times with
LayerNormalization and 1.7 times with the root mean square (128 rows of 768 numbers; equally fast for a single row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.fusion.normalization import spelled_rms
from graphopt.passes.fusion.private import made_by
from graphopt.passes.ort.kernels import DOMAIN, require_kernel
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Match, Refused, bind

RULE = "skip-normalization"
LAYER, RMS = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"


@dataclass(frozen=True, slots=True)
class _Norm:
    """A normalization over the last axis and what it is of."""

    kind: str
    total: ir.Node
    scale: ir.Value | None  # None: ones
    bias: ir.Value | None
    epsilon: float
    group: tuple[ir.Node, ...]


def skip_normalization(editor: Editor, worklist: Sequence[ir.Node]) -> None:
    """LayerNormalization(x + y, a, b)  -->  SkipLayerNormalization(x, y, a, b), which also gives x + y

    (x + y) / Sqrt(ReduceMean((x + y)^2) + e)  -->  SkipSimplifiedLayerNormalization(x, y, ones)

    For tensors of two or three axes and constant scales. Leaves alone sums that widen an operand.
    """
    for node in worklist:
        if node.op_type not in ("LayerNormalization", "RMSNormalization", "Mul", "Div") or node.graph is None:
            continue
        if not nodes.is_standard(node) or nodes.has_reference_attributes(node):
            continue
        reading = Match(node, bind(node), editor.facts)
        try:
            _fuse(editor, reading)
        except Refused:
            editor.discard(reading)


def _fuse(editor: Editor, reading: Match) -> None:
    norm = _normalization(reading)
    site = reading.output
    reading.require(not editor.is_blocked(RULE, site.name or ""), "it was taken back before")
    # Everything is put where the sum stands, so that whoever else reads the sum comes later.
    match = Match(norm.total, bind(norm.total), editor.facts)
    try:
        x, y = norm.total.inputs[0], norm.total.inputs[1]
        assert x is not None and y is not None, "a sum has two operands"
        shape = match.shape(match.output)
        match.require(len(shape) in (2, 3), "it has neither two nor three axes")
        match.require(match.shape(x) == shape and match.shape(y) == shape, "the sum widens an operand")
        match.require(norm.total.graph is reading.root.graph, "the sum belongs to an outer graph")
        kind = match.dtype(match.output)
        require_kernel(match, norm.kind, kind)
        width = shape[-1]
        if not isinstance(width, int):
            match.refuse("the length of the last axis is not known")
        vectors = all(part is None or match.shape(part) == (width,) for part in (norm.scale, norm.bias))
        match.require(vectors, "its scale or bias is no vector of the last axis")
        scale = norm.scale or match.constant(np.ones(width, kind.numpy()))
        attributes = {"epsilon": norm.epsilon}
        operands = [x, y, scale, *([] if norm.kind == RMS else [norm.bias])]
        fused = match.node_of(norm.kind, *operands, attributes=attributes, outputs=4, domain=DOMAIN)
        sources = [norm.total, *norm.group]
        if not editor.accept(RULE, site, sources, match.new_nodes):
            editor.discard(match)
            return
    except Refused:
        editor.discard(match)
        raise
    editor.insert(match, RULE, sources)
    editor.replace_value(match.output, fused.outputs[3])
    editor.replace_value(reading.output, fused.outputs[0])
    for unused in (fused.outputs[1], fused.outputs[2]):
        unused.name = ""
    editor.touched.append(fused)
    editor.sweep([reading.root, norm.total])


def _normalization(match: Match) -> _Norm:
    root = match.root
    if root.op_type in ("Mul", "Div"):
        x, epsilon = spelled_rms(match)
        return _Norm(RMS, _sum(match, x), None, None, epsilon, tuple(match.binding.inner))
    value, scale, bias = nodes.given_input(root), nodes.given_input(root, 1), nodes.input_at(root, 2)
    match.require(match.facts.is_constant(scale) and (bias is None or match.facts.is_constant(bias)), COMPUTED)
    match.require(nodes.int_attribute(root, "stash_type", 1) == 1, "it does not compute in float32")
    axis = nodes.int_attribute(root, "axis", -1)
    match.require(axis in (-1, match.rank(value) - 1), "it is not over the last axis")
    match.require(match.dtype(scale) == match.dtype(value), "the scale is of another type")
    match.require(len(nodes.used_outputs(root)) == 1, "its mean is wanted")
    kind = LAYER if root.op_type == "LayerNormalization" else RMS
    epsilon = nodes.float_attribute(root, "epsilon", 1e-5)
    return _Norm(kind, _sum(match, value), scale, bias, epsilon, (root,))


COMPUTED = "its scale or bias is computed"


def _sum(match: Match, value: ir.Value) -> ir.Node:
    total = made_by(value, "Add")
    if total is None:
        match.refuse("it does not normalize a sum")
    return total

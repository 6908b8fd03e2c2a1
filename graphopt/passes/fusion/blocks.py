"""Blocks of pixels moved into channels, or back, by Reshape, Transpose and Reshape: SpaceToDepth and DepthToSpace."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import dims
from graphopt.passes.algebra.transpose import permutation
from graphopt.passes.fusion.private import made_by, require_private
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})  # what runtimes have both operators for
SPACE_TO_DEPTH = (0, 3, 5, 1, 2, 4)
DEPTH_COLUMN_ROW = (0, 3, 4, 1, 5, 2)
COLUMN_ROW_DEPTH = (0, 1, 4, 2, 5, 3)


@any_node("Reshape", level=2)
def space_to_depth(match: Match) -> Replacement:
    """Reshape(Transpose(Reshape(x, [n, c, h, b, w, b]), 0 3 5 1 2 4), [n, b b c, h, w])  -->  SpaceToDepth(x, b)

    Leaves alone the order of a pixel unshuffle (channels outermost), which the operator does not have.
    """
    x, inner, perm = _block(match)
    match.require(perm == SPACE_TO_DEPTH, "the order of the dimensions is not that of SpaceToDepth")
    n, c, h, block, w, other = inner
    match.require(isinstance(block, int) and block == other, "the block is not a square of known size")
    whole = (n, c, dims.product((h, block)), dims.product((w, block)))
    match.require(match.shape(x) == whole, "the first Reshape does not only cut rows and columns into blocks")
    result = (n, dims.product((block, block, c)), h, w)
    match.require(match.shape(match.output) == result, "the last Reshape does not only join the channels")
    return match.op("SpaceToDepth", x, attributes={"blocksize": int(block)})


@any_node("Reshape", level=2)
def depth_to_space(match: Match) -> Replacement:
    """Reshape(Transpose(Reshape(x, [n, b, b, c, h, w]), 0 3 4 1 5 2), [n, c, h b, w b])  -->  DepthToSpace(x, b)

    Reshape(Transpose(Reshape(x, [n, c, b, b, h, w]), 0 1 4 2 5 3), ...)  -->  DepthToSpace(x, b, mode="CRD"), a pixel
    shuffle, from opset 11 on.
    """
    x, inner, perm = _block(match)
    match.require(
        perm in (DEPTH_COLUMN_ROW, COLUMN_ROW_DEPTH), "the order of the dimensions is not that of DepthToSpace"
    )
    if perm == DEPTH_COLUMN_ROW:
        n, block, other, c, h, w = inner
        mode = None
    else:
        n, c, block, other, h, w = inner
        mode = "CRD"
        match.require(match.opset >= 11, "before opset 11 the operator has one order of channels only")
    match.require(isinstance(block, int) and block == other, "the block is not a square of known size")
    whole = (n, dims.product((block, block, c)), h, w)
    match.require(match.shape(x) == whole, "the first Reshape does not only cut the channels into blocks")
    result = (n, c, dims.product((h, block)), dims.product((w, block)))
    match.require(match.shape(match.output) == result, "the last Reshape does not only join blocks to rows and columns")
    return match.op("DepthToSpace", x, attributes={"blocksize": int(block), "mode": mode})


def _block(match: Match) -> tuple[ir.Value, dims.Dims, tuple[int, ...]]:
    """What the Reshape, Transpose and Reshape start from, the six dims between them, and their order."""
    transpose = made_by(match.root.inputs[0], "Transpose")
    if transpose is None:
        match.refuse("no Transpose stands above")
    first = made_by(transpose.inputs[0], "Reshape")
    if first is None or first.inputs[0] is None:
        match.refuse("no Reshape stands above the Transpose")
    match.require(match.opset >= 5, "before opset 5 Reshape has no shape input")
    inner = match.shape(first.outputs[0])
    match.require(len(inner) == 6 and match.rank(first.inputs[0]) == 4, "it is not an image cut into blocks")
    match.require(match.dtype(first.inputs[0]) in TYPES, "only float and double have the operator in runtimes")
    perm = permutation(match, transpose)
    require_private(match, [transpose, first])
    return first.inputs[0], inner, perm


RULES: tuple[Rule, ...] = (space_to_depth, depth_to_space)

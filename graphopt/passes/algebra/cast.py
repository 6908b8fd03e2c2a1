"""Chains of Casts: the middle type falls away where it loses nothing that the last type keeps."""

from __future__ import annotations

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.passes.operands import FLOATS, INTEGERS, SIGNED
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Replacement, Rule, rule

# Bits of a type: of an integer's magnitude, or of a float's significand (with the implied one).
MAGNITUDE = {
    ir.DataType.BOOL: 1,
    ir.DataType.INT8: 7, ir.DataType.INT16: 15, ir.DataType.INT32: 31, ir.DataType.INT64: 63,
    ir.DataType.UINT8: 8, ir.DataType.UINT16: 16, ir.DataType.UINT32: 32, ir.DataType.UINT64: 64,
    ir.DataType.FLOAT16: 11, ir.DataType.BFLOAT16: 8, ir.DataType.FLOAT: 24, ir.DataType.DOUBLE: 53,
}  # fmt: skip
WIDER_FLOATS = {
    ir.DataType.FLOAT16: frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE}),
    ir.DataType.BFLOAT16: frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE}),
    ir.DataType.FLOAT: frozenset({ir.DataType.DOUBLE}),
    ir.DataType.DOUBLE: frozenset[ir.DataType](),
}


def holds_all(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether every value of type `narrow` is a value of type `wide`."""
    if wide == narrow:
        return True
    if narrow in FLOATS:
        return wide in WIDER_FLOATS[narrow]
    if narrow not in MAGNITUDE or wide not in MAGNITUDE or wide == ir.DataType.BOOL:
        return False
    if narrow in SIGNED and wide in INTEGERS and wide not in SIGNED:
        return False
    # The powers of two up to 2^15 lie within float16, so the significand alone decides for all floats.
    return MAGNITUDE[narrow] <= MAGNITUDE[wide]


def wraps_alike(middle: ir.DataType, last: ir.DataType) -> bool:
    """Whether cutting integers to `middle` bits first changes nothing for `last`, which keeps no more of them."""
    sizes = middle in INTEGERS and last in INTEGERS
    return sizes and last.itemsize <= middle.itemsize


@rule(op("Cast", op("Cast", var("x"), name="first", shared=True)), level=1)
def cast_of_cast(match: Match) -> Replacement:
    """Cast(Cast(x, middle), last)  -->  Cast(x, last), or x when that is its type

    when the middle type holds every value of the first (float -> double -> float), or all are integers and the last
    keeps no more bits than the middle one. Leaves alone strings and 8-bit floats, and roundings in between.
    """
    source = match.dtype("x")
    middle = ir.DataType(nodes.int_attribute(match.node("first"), "to", 0))
    last = ir.DataType(nodes.int_attribute(match.root, "to", 0))
    names = {kind: kind.name.lower() for kind in (source, middle, last)}
    known = all(kind in MAGNITUDE for kind in (source, middle, last))
    match.require(known, "strings and 8-bit floats have rules of their own")
    lossless = holds_all(middle, source)
    cut = source in INTEGERS and wraps_alike(middle, last)
    match.require(lossless or cut, f"{names[middle]} does not hold every value of {names[source]}")
    if source in INTEGERS and middle in FLOATS and last in INTEGERS:
        # Out of range, float to integer is undefined where integer to integer wraps.
        match.require(holds_all(last, source), f"{names[last]} does not hold every value of {names[source]}")
    if source == last:
        return match["x"]
    return match.op("Cast", match["x"], like=match.root)


RULES: tuple[Rule, ...] = (cast_of_cast,)

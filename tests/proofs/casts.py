"""Chains of casts: for every three types, where the rule drops the middle one, nothing is lost.

Which chains it drops is asked of the rule itself. Integers are bit vectors, floats of 16 and 32 bits are IEEE 754,
rounded to nearest even; what a float out of range becomes as an integer is left open, as it is in practice.
"""

from __future__ import annotations

from itertools import product

import onnx_ir as ir
import z3

from graphopt.passes.algebra.cast import RULES
from tests import support
from tests.proofs.statement import Proof, proof

RNE = z3.RNE()
INTEGERS = {"INT8": (8, True), "UINT8": (8, False), "INT16": (16, True)}
FLOATS = {"FLOAT16": z3.Float16(), "FLOAT": z3.Float32()}
KINDS = (*INTEGERS, *FLOATS, "BOOL")


def _variable(kind: str) -> z3.ExprRef:
    if kind in INTEGERS:
        return z3.BitVec("x", INTEGERS[kind][0])
    return z3.FP("x", FLOATS[kind]) if kind in FLOATS else z3.Bool("x")


def cast(value: z3.ExprRef, source: str, target: str) -> z3.ExprRef:
    """The ONNX Cast from one type to another."""
    if source == target:
        return value
    if source == "BOOL":
        one, zero = (
            (z3.BitVecVal(number, INTEGERS[target][0]) for number in (1, 0))
            if target in INTEGERS
            else (z3.FPVal(number, FLOATS[target]) for number in (1.0, 0.0))
        )
        return z3.If(value, one, zero)
    if target == "BOOL":
        return value != 0 if source in INTEGERS else z3.Not(z3.fpIsZero(value))
    if source in INTEGERS and target in INTEGERS:
        (width, signed), (wanted, _) = INTEGERS[source], INTEGERS[target]
        if wanted <= width:
            return z3.Extract(wanted - 1, 0, value)
        return z3.SignExt(wanted - width, value) if signed else z3.ZeroExt(wanted - width, value)
    if source in INTEGERS:
        convert = z3.fpSignedToFP if INTEGERS[source][1] else z3.fpUnsignedToFP
        return convert(RNE, value, FLOATS[target])
    if target in INTEGERS:
        width, signed = INTEGERS[target]
        return _to_integer(value, width, signed)
    return z3.fpFPToFP(RNE, value, FLOATS[target])


def _to_integer(value: z3.FPRef, width: int, signed: bool) -> z3.BitVecRef:
    """Toward zero; out of range one unknown number for each float, whatever the width of that float."""
    wide = z3.fpFPToFP(RNE, value, z3.Float32())
    bits = z3.BitVecSort(width)
    number = (z3.fpToSBV if signed else z3.fpToUBV)(z3.RTZ(), wide, bits)
    low, high = (-(2.0 ** (width - 1)), 2.0 ** (width - 1)) if signed else (0.0, 2.0**width)
    inside = z3.And(wide > z3.FPVal(low - 1, z3.Float32()), wide < z3.FPVal(high, z3.Float32()))
    unknown = z3.Function(f"out_of_range_{width}_{signed}", z3.Float32(), bits)
    return z3.If(inside, number, unknown(wide))


def drops_the_middle(source: str, middle: str, last: str) -> bool:
    """Whether the rule makes one Cast, or none, of the two."""
    kinds = [int(ir.DataType[name]) for name in (source, middle, last)]
    first, second = (f"Cast<to = {kind}>" for kind in kinds[1:])
    text = f"g ({source.lower()}[2] x) => ({last.lower()}[2] y) {{ m = {first}(x) y = {second}(m) }}"
    _, log = support.apply_rules(support.model(text), RULES)
    return bool(log)


def _chains() -> tuple[Proof, ...]:
    # The false neighbors: a middle type that holds less.
    x, y = _variable("INT16"), _variable("FLOAT")
    cut = cast(cast(x, "INT16", "INT8"), "INT8", "INT16") == x
    rounded = z3.ExprRef.__eq__(cast(cast(y, "FLOAT", "FLOAT16"), "FLOAT16", "FLOAT"), y)
    found = []
    for source, middle, last in product(KINDS, repeat=3):
        if source == middle or middle == last or not drops_the_middle(source, middle, last):
            continue
        value = _variable(source)
        both = cast(cast(value, source, middle), middle, last)
        claim = z3.ExprRef.__eq__(both, cast(value, source, last))
        wrong = rounded if middle in FLOATS else cut
        found.append(proof("cast-of-cast", f"{source} -> {middle} -> {last}", claim, wrong=wrong))
    return tuple(found)


_WIDE, _NARROW = z3.FP("w", FLOATS["FLOAT"]), z3.FP("n", FLOATS["FLOAT16"])
OWN_TYPE = proof(
    "cast-to-own-type", "a float rounded to its own type is itself",
    z3.And(z3.ExprRef.__eq__(z3.fpFPToFP(RNE, _WIDE, z3.Float32()), _WIDE),
           z3.ExprRef.__eq__(z3.fpFPToFP(RNE, _NARROW, z3.Float16()), _NARROW)),
    wrong=z3.ExprRef.__eq__(z3.fpFPToFP(RNE, z3.fpFPToFP(RNE, _WIDE, z3.Float16()), z3.Float32()), _WIDE),
)  # fmt: skip

PROOFS: tuple[Proof, ...] = (*_chains(), OWN_TYPE)

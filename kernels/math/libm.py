"""The rarer functions of f64: calls of the C library, one lane after the other.

They are correct and slow, and an object that uses them is linked with the C library's `m`.
"""

from __future__ import annotations

from kernels.llvm import types
from kernels.llvm.function import Function, Value, joined


def call(f: Function, name: str, *operands: Value) -> Value:
    """A function of the C library by its name without suffix ("exp", "fmod"), for f32 and f64."""
    kind = operands[0].type
    full = name + ("f" if types.element(kind) == "float" else "")
    count = max(len(operand.parts) for operand in operands)
    made = []
    for part in range(count):
        given = [operand.split()[part if len(operand.parts) > 1 else 0] for operand in operands]
        total = f.number(kind, 0.0)
        for lane in range(types.lanes(kind)):
            one = f.call_outside(full, types.element(kind), *(f.extract(operand, lane) for operand in given))
            total = one if types.lanes(kind) == 1 else f.insert(total, one, lane)
        made.append(total)
    return joined(made)

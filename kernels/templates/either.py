"""One kernel of two that compute the same: the first in runs of few, up to a size of a dim, the second in all others.

    blocks = few.blocks * is_few + many.blocks * (1 - is_few)        is_few = least(1, 1 // batch): up to 1

What suits one image is slow for eight, and the reverse, where weights pass as often as there are images: no one choice
serves both. A constant that the two read in different forms is an operand of each; other operands are those of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernels.kernel import SIZES, Kernel, write_kernel
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.size import Size, greatest, least

ALIGNMENT = 64  # bytes, of the scratch of the two
AGAIN = ".again"  # ends the name of an operand that the second kernel reads in another form


def original(name: str) -> str:
    """The operand whose memory, in one form or another, an operand of such a kernel is."""
    return name.removesuffix(AGAIN)


def up_to(number: Size | int, size: int) -> Size | int:
    """1 where a number of a run is at most this one, else 0."""
    return least(1, size // greatest(1, number))


def is_one(number: Size | int) -> Size | int:
    """1 where a number of a run is 1, else 0."""
    return up_to(number, 1) * least(1, number)


def either(few: Kernel, many: Kernel, is_few: Size | int, name: str) -> Kernel:
    """The kernel `name` that is `few` in runs whose `is_few` is 1, and `many` where it is 0."""
    module = Module(few.module.target)
    module.include(few.module)
    module.include(many.module)
    known = {one.name: replace(one, parts=None) for one in few.operands if one.role != SIZES}
    rows = [[one.name for one in few.operands], [one.name for one in many.operands]]
    for place, one in enumerate(many.operands):
        if one.role == SIZES:
            continue
        other = replace(one, parts=None)
        if one.role != "constant" and one.name in known:  # what a run gives and takes lies in one place
            known[one.name] = max(known[one.name], other, key=lambda operand: operand.elements)
        elif known.get(one.name) != other:
            rows[1][place] = one.name + AGAIN
            known[rows[1][place]] = replace(other, name=rows[1][place])
    pointers = -(-8 * max(map(len, rows)) // ALIGNMENT) * ALIGNMENT

    def body(f: Function, given: dict[str, Value], block: Value, scratch: Value) -> None:
        def run(kernel: Kernel, row: Sequence[str]) -> None:
            for place, (operand, known) in enumerate(zip(kernel.operands, row, strict=True)):
                address = f.sizes_of_run(operand.elements) if operand.role == SIZES else given[known]
                f.store(address, f.at(scratch, place, "ptr"))
            own = f.at(scratch, pointers, "i8")
            f.line(f"call void @{kernel.name}(ptr {scratch.text}, i64 {block.text}, ptr {own.text})")

        here = f.compare("ne", f.integer(is_few), f.integer(0))
        f.when(here, lambda: run(few, rows[0]), lambda: run(many, rows[1]))

    blocks = [one.blocks if one.run_blocks is None else one.run_blocks for one in (few, many)]
    made = write_kernel(
        module, name, tuple(known.values()), blocks[0] * is_few + blocks[1] * (1 - is_few), body,
        scratch_bytes=pointers + max(few.scratch_bytes, many.scratch_bytes), flops=max(few.flops, many.flops),
        traffic=max(few.traffic, many.traffic), candidate=f"{few.candidate} or {many.candidate}",
    )  # fmt: skip
    return replace(made, blocks=max(few.blocks, many.blocks))

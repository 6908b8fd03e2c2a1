"""Kernels whose operands start some elements into a buffer: images that are a part of others."""

from __future__ import annotations

from dataclasses import replace

from graphopt.program.regions.images.image import Image
from kernels.kernel import ENTRY, Kernel
from kernels.llvm.function import Function
from kernels.llvm.module import Module


def placed(kernel: Kernel, **images: Image) -> Kernel:
    """The kernel with operands where the images start: the same one when that is where their buffers do."""
    offsets = {name: image.offset for name, image in images.items() if image.offset}
    if not offsets:
        return kernel
    moves = "_".join(f"{name}{offset}" for name, offset in offsets.items())
    name, module = f"{kernel.name}_{moves}", Module(kernel.module.target)
    module.include(kernel.module)
    f = Function(module, name, ENTRY, exported=True)
    table = f.value("ptr", f"alloca [{len(kernel.operands)} x ptr], align 8")
    for position, operand in enumerate(kernel.operands):
        pointer = f.load("ptr", f.at(f.parameter("arguments"), position, "ptr"))
        moved = f.at(pointer, offsets.get(operand.name, 0) * operand.dtype.bytes, "i8")
        f.store(moved, f.at(table, position, "ptr"), align=8)
    block, scratch = f.parameter("block"), f.parameter("scratch")
    f.line(f"call void @{kernel.name}(ptr {table.text}, i64 {block.text}, ptr {scratch.text})")
    f.finish()
    operands = tuple(replace(one, elements=one.elements + offsets.get(one.name, 0)) for one in kernel.operands)
    return replace(kernel, name=name, module=module, operands=operands)

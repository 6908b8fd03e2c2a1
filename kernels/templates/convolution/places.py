"""Addresses: which block, and where a tile's first pixel and channel lie in the output and the epilogue's operands."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.llvm import types
from kernels.llvm.function import Function, Value
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import OUTPUT, Convolution
from kernels.templates.epilogue import origins
from kernels.tensor.expression import Variable


def channel_of_group(f: Function, layout: Layout, channels: int, x: Value, image: Value, group: Value) -> Value:
    """The first stored element of an image's dense group of so many channels."""
    distance = channels if layout.order == "NHWC" else channels // layout.block * layout.block_stride
    return f.at(f.at(x, f.mul(image, layout.image_stride)), f.mul(group, distance))


def variables_at(
    f: Function,
    problem: Convolution,
    outer: tuple[Value, Value, Value],
    channel: Value,
    width: int,
    row: Value,
    column: Value,
    lanes: int = 0,
) -> dict[Variable, Value]:
    """The epilogue's variables at a tile's first pixel and channel.

    `outer` is image, plane and group; `channel` is counted inside the group, and a group has `width` of them.
    """
    image, plane, group = outer
    out, lanes = problem.output, lanes or f.module.target.lanes()
    if out.order == "NHWC":
        block, lane = f.integer(0), f.add(f.mul(group, width), channel)
    elif out.block == 1:
        block, lane = f.add(f.mul(group, width), channel), f.integer(0)
    else:
        inside = f.binary("udiv", channel, f.integer(out.block))
        lane = f.sub(channel, f.mul(inside, out.block)) if lanes < out.block else f.integer(0)
        block = f.add(f.mul(group, width // out.block), inside)
    return dict(zip(problem.variables, (image, block, plane, row, column, lane), strict=True))


def output_at(f: Function, problem: Convolution, base: Value, at: Mapping[Variable, Value]) -> Value:
    """The output's address at a tile's first pixel and channel."""
    load = problem.like_output(OUTPUT)
    position = load.buffer.position(load.indices)
    offset = f.integer(position.offset)
    for variable, factor in position.terms:
        offset = f.add(offset, f.mul(at[variable], factor))
    return f.at(base, offset, types.scalar(problem.epilogue.dtype))


def operands_at(
    f: Function, problem: Convolution, pointers: Mapping[str, Value], at: Mapping[Variable, Value]
) -> tuple[Value, ...]:
    """The addresses of the epilogue's operands there, in their order."""
    found = origins(f, problem.epilogue, pointers, at)
    return tuple(found[buffer.name] for buffer in problem.epilogue.buffers)

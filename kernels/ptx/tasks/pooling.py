"""Pooling: a thread, or a warp where windows are large, for each element of the result."""

from __future__ import annotations

from math import prod

from kernels.kernel import Kernel
from kernels.llvm.function import Value
from kernels.ptx.tasks.convolution import PixelOutput
from kernels.ptx.tasks.leaves import ThreadElements, axes_of
from kernels.ptx.tasks.pixels import channel_at, window_at
from kernels.ptx.tasks.threads import MOST_ELEMENTS, WARP, Block, NoTask, each_of, span, write_task
from kernels.target import Target
from kernels.templates.convolution.problem import INPUT, OUTPUT
from kernels.templates.pooling_problem import Pooling

_LARGE = 32  # places of a window that a warp shares


def pooling(problem: Pooling, target: Target, name: str) -> Kernel:
    """The task: operands "x", those of the epilogue, "y"."""
    windows, out = problem.windows, problem.windows.output
    elements, taps = out.channels * out.batch * prod(out.size), prod(windows.kernel)
    group = WARP if taps >= _LARGE else 1
    if elements * group > MOST_ELEMENTS or windows.input.elements > MOST_ELEMENTS:
        raise NoTask("the images have more elements than 32 bits count.")
    by_channels = out.block > 1

    each = each_of(elements * group, target)

    def body(block: Block) -> None:
        block.turns(each, lambda thread: element(block, thread))

    def element(block: Block, thread: Value) -> None:
        f = block.f
        number, lane = block.split(thread, (elements, group)) if group > 1 else (thread, block.word(0))
        there, near = block.below(number, elements), block.least(number, elements - 1)
        if by_channels:
            pixel, channel = block.split(near, (out.batch * prod(out.size), out.channels))
        else:
            image, channel, inner = block.split(near, (out.batch, out.channels, prod(out.size)))
            pixel = f.add(f.mul(image, prod(out.size)), inner)
        image, *places = block.split(pixel, (out.batch, *out.size))
        starts = [
            f.add(f.mul(place, stride), -pad)
            for place, stride, pad in zip(places, windows.strides, windows.pads, strict=True)
        ]
        base = f.add(f.mul(image, windows.input.image_stride), windows.input.origin)
        base = f.add(base, channel_at(block, windows, channel))
        nothing = f.number("float", float("-inf") if problem.kind == "max" else 0.0)

        def one(tap: Value, held: tuple[Value, ...]) -> tuple[Value, ...]:
            at, inside = window_at(block, windows, base, starts, block.split(tap, windows.kernel), check=True)
            if inside is not None:
                at = f.select(inside, at, block.word(0))
            x = f.load("float", block.at(block.pointers[INPUT], at))
            if inside is not None:
                x = f.select(inside, x, nothing)
            return together(held, (x,))

        def together(a: tuple[Value, ...], b: tuple[Value, ...]) -> tuple[Value, ...]:
            return (f.maximum(a[0], b[0]) if problem.kind == "max" else f.add(a[0], b[0]),)

        if group > 1:
            found = block.combined(block.strided(lane, taps, group, one, (nothing,)), group, together)
        else:
            found = (nothing,)
            for tap in range(taps):
                found = one(block.word(tap), found)
        result = found[0]
        if problem.kind == "average":
            result = f.div(result, _counted(block, problem, starts))
        at = axes_of(PixelOutput(block, windows, block.word(0)).at(channel, pixel))

        def put() -> None:
            leaves = ThreadElements(block, at, {"accumulated": result})
            leaves.store(leaves.values((windows.epilogue.value,))[0], windows.like_output(OUTPUT))

        first = f.binary("and", there, f.compare("eq", lane, block.word(0)))
        f.when(first, put)

    return write_task(
        target, name, windows.operands(), -(-elements * group // span(each)), body, flops=windows.flops // 2,
        candidate=f"{group} threads an element",
    )  # fmt: skip


def _counted(block: Block, problem: Pooling, starts: list[Value]) -> Value:
    """How many places of a window count, as a float."""
    f, total = block.f, block.word(1)
    for axis, start in enumerate(starts):
        line = problem.axes[axis]
        counts = {problem.counted(axis, output) for output in range(line.outputs)}
        if len(counts) == 1:
            total = f.mul(total, counts.pop())
            continue
        low, high = (-line.pad, line.size + problem.after[axis]) if problem.count_pads else (0, line.size)
        found = block.word(0)
        for tap in range(line.taps):
            place = f.add(start, tap * line.dilation - low)
            found = f.add(found, f.convert("zext", "i32", block.below(place, high - low)))
        total = f.mul(total, found)
    return f.convert("uitofp", "float", total)

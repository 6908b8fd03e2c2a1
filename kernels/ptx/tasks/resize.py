"""Resizing images: a thread for each element of the result, which mixes two, four or eight of the input."""

from __future__ import annotations

from math import prod

from kernels.kernel import Kernel
from kernels.llvm import types
from kernels.llvm.function import Value
from kernels.ptx.tasks.convolution import PixelOutput
from kernels.ptx.tasks.leaves import ThreadElements, axes_of
from kernels.ptx.tasks.pixels import channel_at
from kernels.ptx.tasks.threads import MOST_ELEMENTS, Block, NoTask, each_of, span, write_task
from kernels.target import Target
from kernels.templates.convolution.problem import INPUT, OUTPUT
from kernels.templates.resize import Resize

Sources = list[tuple[Value, Value | None]]  # places of the input and their weights; None: 1


def resize(problem: Resize, target: Target, name: str) -> Kernel:
    """The task: operands "x", those of the epilogue, "y"."""
    places, out = problem.places, problem.output
    elements = out.channels * out.batch * prod(out.size)
    if max(elements, problem.input.elements) > MOST_ELEMENTS:
        raise NoTask("the images have more elements than 32 bits count.")

    each = each_of(elements, target)

    def body(block: Block) -> None:
        block.turns(each, lambda number: element(block, number))

    def element(block: Block, number: Value) -> None:
        f = block.f
        near = block.least(number, elements - 1)
        if out.block > 1:
            pixel, channel = block.split(near, (out.batch * prod(out.size), out.channels))
        else:
            image, channel, inner = block.split(near, (out.batch, out.channels, prod(out.size)))
            pixel = f.add(f.mul(image, prod(out.size)), inner)
        image, *where = block.split(pixel, (out.batch, *out.size))
        base = f.add(f.mul(image, problem.input.image_stride), problem.input.origin)
        sources: Sources = [(f.add(base, channel_at(block, places, channel)), None)]
        layout = problem.input
        strides = (layout.plane_stride, layout.row_stride, layout.column_stride)
        for axis, (place, stride) in enumerate(zip(where, strides, strict=True)):
            sources = _mixed(block, problem, name, sources, axis, place, stride)
        total: Value | None = None
        for place, weight in sources:
            x = f.load("float", block.at(block.pointers[INPUT], place))
            if weight is None:
                total = x
            else:
                total = f.mul(x, weight) if total is None else f.fma(x, weight, total)
        assert total is not None, "there is always a source"
        at = axes_of(PixelOutput(block, places, block.word(0)).at(channel, pixel))
        leaves = ThreadElements(block, at, {"accumulated": total})

        def put() -> None:
            leaves.store(leaves.values((places.epilogue.value,))[0], places.like_output(OUTPUT))

        f.when(block.below(number, elements), put)

    flops = 0 if problem.mode == "nearest" else 7 * out.elements
    return write_task(
        target, name, places.operands(), -(-elements // span(each)), body, flops=flops,
        candidate=f"{each} of a thread",
    )  # fmt: skip


def _mixed(
    block: Block, problem: Resize, name: str, sources: Sources, axis: int, place: Value, stride: int
) -> Sources:  # fmt: skip
    """Each source at its places along one more axis, which tables hold."""
    f = block.f
    found = [problem.between(axis, output) for output in range(problem.output.size[axis])]
    if all(low == at and not weight for at, (low, _, weight) in enumerate(found)):
        return [(f.add(one, f.mul(place, stride)), weight) for one, weight in sources]

    def entry(number: int, kind: str, values: list[str]) -> Value:
        table = Value((f.module.constant(f"{name}_axis{axis}_{number}", kind, values),), "ptr")
        return f.load(kind, block.at(table, place, kind))

    low = entry(0, "i32", [str(one * stride) for one, _, _ in found])
    if not any(weight for _, _, weight in found):
        return [(f.add(one, low), weight) for one, weight in sources]
    high = entry(1, "i32", [str(one * stride) for _, one, _ in found])
    share = entry(2, "float", [types.constant("float", weight) for _, _, weight in found])
    rest = f.sub(f.number("float", 1.0), share)
    return [
        (f.add(one, distance), part if weight is None else f.mul(weight, part))
        for one, weight in sources
        for distance, part in ((low, rest), (high, share))
    ]

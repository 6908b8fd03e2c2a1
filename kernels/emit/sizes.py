"""The sizes of a run, as LLVM: what a model with free dims has in its record, and the function that sets them.

    int P_set_dim(P_model *model, const char *name, int64_t size)    of the runs from now on; at first the greatest

The record has an int64 for each free dim, which kernels read. Behind them stand the dims of inputs and outputs that
follow from them, which `P_run` holds its tensors to and `P_dims` gives out; and the blocks that a run has of kernels,
so that one worker goes through no others. Sizes whose runs have hardly more than a block each are the caller's alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernels.emit import layout as at
from kernels.emit.layout import MemoryLayout
from kernels.emit.refusal import BAD_ARGUMENT, MODEL_BUSY, OK, is_null, refuse_when, return_when, say, text
from kernels.listing import Argument, Listing
from kernels.llvm.function import Function, Parameter
from kernels.llvm.module import Module
from kernels.size import Size

SHARED_FROM = 2  # blocks of a run in the mean: with fewer, several workers would mostly wait for one


def following(listing: Listing) -> Iterator[tuple[Argument, int, Size]]:
    """The dims that follow from sizes, in the order in which they lie in the record: argument, axis, expression."""
    for one in (*listing.inputs, *listing.outputs):
        for axis, size in one.free:
            yield one, axis, size


def free_places(listing: Listing) -> dict[tuple[Argument, int], int]:
    """The number of each dim that follows from sizes, by argument and axis."""
    return {(one, axis): number for number, (one, axis, _) in enumerate(following(listing))}


def write_sizes(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """Add the functions; none to a program whose dims are all numbers."""
    if not listing.sizes:
        return
    module.declare("strcmp", "i32", ["ptr", "ptr"])
    _write_follow(module, listing, layout)
    _write_set(module, listing, layout)


def _write_follow(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """follow(record): the numbers and dims that follow from the sizes."""
    f = Function(module, "follow", (Parameter("record"),))
    record = f.parameter("record")
    f.find_sizes(record, layout.sizes)
    start = layout.sizes + 8 * len(listing.sizes)
    for number, size in enumerate(listing.derived):
        f.store(f.integer(size), f.at(record, start + 8 * number, "i8"))
    start = layout.sizes + 8 * listing.size_count
    for number, (_, _, size) in enumerate(following(listing)):
        f.store(f.integer(size), f.at(record, start + 8 * number, "i8"))
    for number, kernel in enumerate(listing.kernels):
        blocks = kernel.blocks if kernel.run_blocks is None else kernel.run_blocks
        f.store(f.integer(blocks), f.at(record, layout.blocks + 8 * number, "i8"))
    known = {kernel.name: kernel for kernel in listing.kernels}
    total: Size | int = 0
    for run in listing.runs:
        kernel = known[run.kernel]
        total = total + (kernel.blocks if kernel.run_blocks is None else kernel.run_blocks)
    few = f.compare("slt", f.integer(total), f.integer(SHARED_FROM * len(listing.runs)))
    f.store(f.convert("zext", "i64", few), f.at(record, layout.few, "i8"))
    f.finish()


def _write_set(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    given = (Parameter("model"), Parameter("name"), Parameter("size", "i64"))
    f = Function(module, f"{listing.name}_set_dim", given, exported=True, result="i32")
    record, name, size = (f.parameter(one.name) for one in given)
    return_when(f, is_null(f, record), f.number("i32", BAD_ARGUMENT))
    unready = f.compare("eq", f.load("i64", f.at(record, at.READY, "i8")), f.integer(0))
    return_when(f, unready, f.number("i32", BAD_ARGUMENT))  # the text says why it could not be created
    busy = f.at(record, at.BUSY, "i8")
    before = f.value("i32", f"atomicrmw xchg ptr {busy.text}, i32 1 acquire, align 4")
    return_when(f, f.compare("ne", before, f.number("i32", 0)), f.number("i32", MODEL_BUSY))
    code = f.call("choose_size", record, name, size, result="i32")
    assert code is not None, "it gives a result"
    f.line(f"store atomic i32 0, ptr {busy.text} release, align 4")
    f.give(code)
    f.finish()
    _write_choose(module, listing, layout)


def _write_choose(module: Module, listing: Listing, layout: MemoryLayout) -> None:
    """choose_size(record, name, size) -> code: for a model that this call has taken."""
    given = (Parameter("record"), Parameter("name"), Parameter("size", "i64"))
    f = Function(module, "choose_size", given, result="i32")
    record, name, size = (f.parameter(one.name) for one in given)
    names = ", ".join(f"'{dim.name}'" for dim in listing.sizes)
    refuse_when(f, is_null(f, name), BAD_ARGUMENT, record, f"no name of a dim is given; the program has {names}.")
    for dim in listing.sizes:

        def choose(
            least: int = dim.least, most: int = dim.most, number: int = dim.number, known: str = dim.name
        ) -> None:
            below, above = f.compare("slt", size, f.integer(least)), f.compare("sgt", size, f.integer(most))
            sentence = f"'%s' cannot be %lld; the program is made for {least} to {most}."
            refuse_when(f, f.binary("or", below, above), BAD_ARGUMENT, record, sentence, text(f.module, known), size)
            f.store(size, f.at(record, layout.sizes + 8 * number, "i8"))
            f.call("follow", record)
            f.line(f"ret i32 {OK}")
            f.label(f.fresh("never"))

        order = f.value("i32", f"call i32 @strcmp(ptr {name.text}, ptr {text(f.module, dim.name).text})")
        f.when(f.compare("eq", order, f.number("i32", 0)), choose)
    say(f, record, f"there is no free dim '%s'; the program has {names}.", name)
    f.give(f.number("i32", BAD_ARGUMENT))
    f.finish()


def shape_of(listing: Listing, one: Argument) -> str:
    """An argument's dims for people, with the expressions of those that follow from sizes."""
    free = {axis: size.formula for axis, size in one.free}
    dims = ", ".join(free.get(axis, str(dim)) for axis, dim in enumerate(one.shape))
    return f"[{dims}]" + (f", for the sizes that {listing.name}_set_dim sets" if free else "")

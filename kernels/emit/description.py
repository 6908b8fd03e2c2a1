"""What a program says of itself: a JSON text in the library, which a caller reads without any other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kernels.emit.layout import MemoryLayout
from kernels.emit.processor import Requirement
from kernels.emit.types import code_of
from kernels.emit.version import ABI
from kernels.listing import Argument, Listing
from kernels.size import Dim, Size, at
from kernels.target import Target

Terms = tuple[tuple[int, tuple[str, ...]], ...]  # a sum of products: a factor, and names of free dims


class FreeDim(msgspec.Struct, frozen=True):
    """A dim that has a size from `least` to `most` in every run."""

    name: str
    least: int
    most: int


class Tensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input or output: dense, row-major. What has a default is not in programs of earlier versions."""

    name: str
    dtype: str
    code: int  # of the element type in the C interface
    shape: tuple[int, ...]
    held: tuple[tuple[int, int], ...] = ()  # places in the flat tensor, and the integers that a call has to give there
    counted: tuple[int, ...] = ()  # axes of an output along which a run finds at most the dim of `shape`
    free: tuple[tuple[int, Terms], ...] = ()  # axes whose dim follows from the sizes of a run, at most that of `shape`
    room: tuple[int, ...] = ()  # of a cache: dims that its memory has room for, by whose strides its elements lie
    cache: int = -1  # of an output: the input in whose memory it lies


class Point(msgspec.Struct, frozen=True):
    """Sizes of dims that a program is made for, and the tensors that it then has."""

    sizes: dict[str, int]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is fixed when a program is compiled; sizes in bytes."""

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...]  # that the processor must have
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    arena_bytes: int
    scratch_bytes: int
    weights_bytes: int  # of the file
    weights_checksum: str  # 16 hexadecimal digits: kernels/emit/checksum.py
    runs: int
    shared_arena_bytes: int | None  # of a model that several workers run; None: only one can
    abi: int  # the version of the interface in C
    made_bytes: int = 0  # of weights that are made at creation, behind those of the file
    points: tuple[Point, ...] = ()  # of a program for several sizes; its inputs and outputs are those of the first
    sizes: tuple[FreeDim, ...] = ()  # of a program for ranges of sizes, in the order of their numbers
    derived: int = 0  # numbers in the record behind the sizes, which follow from them
    fetched_bytes: int = 0  # of the file, at its end, that are read in each run and not kept
    spilled_bytes: int = 0  # of a temporary file for intermediate results


def describe(
    listing: Listing, target: Target, layout: MemoryLayout, needed: tuple[Requirement, ...], checksum: int
) -> Description:
    """The description of a listing compiled for a target."""
    return Description(
        name=listing.name,
        triple=target.triple,
        cpu=target.cpu,
        features=tuple(one.name for one in needed),
        inputs=_tensors(listing.inputs, listing.sizes),
        outputs=_tensors(listing.outputs, listing.sizes),
        arena_bytes=listing.arena_bytes,
        scratch_bytes=listing.scratch_bytes,
        weights_bytes=layout.file_bytes,
        weights_checksum=f"{checksum:016x}",
        runs=len(listing.runs),
        abi=ABI,
        made_bytes=layout.making.start + layout.making.bytes - layout.weights_bytes if layout.making.steps else 0,
        shared_arena_bytes=None if listing.ticketed is None else listing.ticketed.arena_bytes,
        sizes=tuple(FreeDim(one.name, one.least, one.most) for one in listing.sizes),
        derived=len(listing.derived),
        fetched_bytes=0 if listing.ticketed is None else listing.ticketed.fetched_bytes,
        spilled_bytes=0 if listing.ticketed is None else listing.ticketed.spilled_bytes,
    )


def _tensors(arguments: tuple[Argument, ...], dims: Sequence[Dim]) -> tuple[Tensor, ...]:
    """With the dims that they have at the greatest sizes of a run; a program may be made for greater ones."""
    most = {dim.name: dim.most for dim in dims}
    return tuple(
        Tensor(
            one.name, one.dtype.value, code_of(one.dtype), _shape(one, most), one.held, one.counted,
            tuple((axis, _terms(size)) for axis, size in one.free), one.room, one.cache,
        )
        for one in arguments
    )  # fmt: skip


def _shape(argument: Argument, most: Mapping[str, int]) -> tuple[int, ...]:
    free = dict(argument.free)
    return tuple(at(free[axis], most) if axis in free else dim for axis, dim in enumerate(argument.shape))


def _terms(size: Size) -> Terms:
    """A polynomial as numbers and names, or smaller and greater ones of two: "min(rows, 8)"."""
    return tuple((factor, tuple(atom.text for atom in product)) for product, factor in size.terms)


def with_points(descriptions: Sequence[Description], points: Sequence[tuple[tuple[str, int], ...]]) -> Description:
    """One description of a program's points, each described: memory and runs are the most that any of them has."""
    first = descriptions[0]
    several = [one.shared_arena_bytes for one in descriptions if one.shared_arena_bytes is not None]
    return msgspec.structs.replace(
        first,
        arena_bytes=max(one.arena_bytes for one in descriptions),
        scratch_bytes=max(one.scratch_bytes for one in descriptions),
        shared_arena_bytes=max(several, default=None),
        points=tuple(
            Point(dict(point), one.inputs, one.outputs)
            for point, one in zip(points, descriptions, strict=True)
            if point
        ),
    )

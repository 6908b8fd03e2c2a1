"""The manifest of a bundle: what is in it, what it needs, where its buffers lie."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from graphopt.errors import BundleError
from graphopt.program.deploy.runtime import SCHEMA
from graphopt.program.ram.plan import Streamed
from graphopt.program.regions.region import Lowered, Origin
from kernels.emit.description import Description
from kernels.listing import Listing


class File(msgspec.Struct, frozen=True):
    """A file of the bundle."""

    bytes: int
    sha256: str


class SharedKernel(msgspec.Struct, frozen=True):
    """The form of a kernel that several workers run."""

    blocks: int
    candidate: str


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of the program. What has a default is not in manifests of earlier versions."""

    kernel: str
    blocks: int
    flops: int
    candidate: str  # which tile sizes, for people
    node: str = ""  # the name of the first node that it computes
    operators: tuple[str, ...] = ()  # of all its nodes; none for a copy
    constants: int = 0  # bytes of weights that it reads


class PlannedBuffer(msgspec.Struct, frozen=True):
    """A buffer in the arena: bytes [offset, offset + bytes) during runs [begin, end)."""

    name: str
    offset: int
    bytes: int
    begin: int
    end: int


class Operand(msgspec.Struct, frozen=True, array_like=True):
    """An operand of a kernel: bytes from its first to its last element."""

    role: Literal["input", "constant", "output", "sizes"]
    bytes: int


class Code(msgspec.Struct, frozen=True, array_like=True):
    """A kernel, of one worker's runs or of several workers'."""

    name: str
    blocks: int
    operands: tuple[Operand, ...]


class Use(msgspec.Struct, frozen=True, array_like=True):
    """Where an operand starts, whatever the plan: in a buffer of the arena, in the weights, in an argument, or the
    sizes of a run."""

    space: Literal["arena", "weights", "input", "output", "sizes"]
    number: int  # of the buffer, of the input or of the output; 0 in the weights
    offset: int  # bytes


class Uses(msgspec.Struct, frozen=True, array_like=True):
    """What one run works on, operand by operand."""

    several: int | None  # the kernel's number for several workers; None in a program for one
    operands: tuple[Use, ...]


class Ram(msgspec.Struct, frozen=True):
    """What a process takes for a program within a budget, in bytes."""

    bytes: int  # the sum of the others
    workers: int  # that run it at the most
    kept: int  # weights that stay in memory
    ring: int  # room for those that are read in each run
    arena: int
    scratch: int  # of all workers
    arguments: int  # inputs and outputs
    code: int  # the library, tables and stacks, about
    fetched: int  # weights that each run reads: memory that it does not take
    spilled: int = 0  # intermediate results that each run writes to a temporary file and reads back


class Footprint(msgspec.Struct, frozen=True):
    """What a library for a microcontroller takes, in bytes, and what it asks for."""

    flash: int  # code and weights
    memory: int  # inputs, arena, scratch and outputs
    outside: tuple[str, ...]  # functions that it calls and has not


class Manifest(msgspec.Struct, frozen=True):
    """What a bundle says of itself. Nothing in it depends on where or when it was written."""

    name: str
    program: Description
    runs: tuple[Step, ...]
    buffers: tuple[PlannedBuffer, ...]
    files: dict[str, File]  # all but the manifest
    producer: str = ""  # graphopt and its version; empty in manifests of earlier ones
    claims: tuple[int, ...] = ()  # the runs in the order in which several workers claim them; empty: as they stand
    shared: dict[str, SharedKernel] = {}  # by kernel; one that is not here is run by several workers as it is
    kernels: tuple[Code, ...] = ()  # in the library's order; none in manifests of earlier versions
    uses: tuple[Uses, ...] = ()  # by run; none in manifests of earlier versions, and of listings written by hand
    model: str = ""  # SHA-256 of the model's file and of its data files, one after the other; empty: of none
    levels: tuple[Description, ...] = ()  # of a library with several programs: `program` is the first of them
    ram: Ram | None = None  # of a program within a budget of the process
    footprint: Footprint | None = None  # of a library for a microcontroller
    schema: str = SCHEMA

    def require_one(self, what: str) -> None:
        """Raise BundleError for a bundle of several programs, or one within a budget: `what` is done with one."""
        if self.ram is not None:
            raise BundleError(f"the bundle reads weights while it runs; one that keeps them all is {what}.")
        programs = sum(max(1, len(level.points)) for level in self.levels)
        if programs > 1:
            raise BundleError(
                f"the bundle holds {programs} programs; one of one level and one size is {what}: compile it so."
            )


MANIFEST = "manifest.json"
EARLIER_SCHEMAS = ("graphopt.bundle/1",)  # which name their files alike, so that a bundle takes their place
OPERATORS_SCHEMA = "graphopt.operators/1"  # of a folder with custom operators


def written(manifest: msgspec.Struct) -> bytes:
    """The manifest as its file has it: a line for each field, and for each run, buffer and file."""
    fields = (f'  "{name}": {_lines(getattr(manifest, name))}' for name in manifest.__struct_fields__)
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def _lines(field: object) -> str:
    """A value as JSON; of several records each on a line of its own."""
    rows = []
    if isinstance(field, tuple) and field and isinstance(field[0], msgspec.Struct):
        rows = [_json(one) for one in field]
    elif isinstance(field, dict):
        rows = [f"{_json(name)}:{_json(one)}" for name, one in field.items()]
    if not rows:
        return _json(field)
    first, last = "[]" if isinstance(field, tuple) else "{}"
    return first + "".join(f"\n    {row}," for row in rows)[:-1] + f"\n  {last}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def read_manifest(folder: str | os.PathLike[str], *, library: bool = True) -> Manifest:
    """The manifest of a bundle, with `library` of one that has a library; raises BundleError."""
    path = Path(folder) / MANIFEST
    found = _decoded(path, Manifest)
    if found.schema != SCHEMA:
        raise BundleError(f"'{path}' has the schema '{found.schema}'; this code reads '{SCHEMA}'.")
    if library and found.program.triple.startswith("nvptx"):
        raise BundleError(f"'{folder}' is a bundle for a GPU, which has no library; `graphopt run` runs it.")
    if library and found.footprint is not None:
        raise BundleError(f"'{folder}' is a library for a microcontroller, which is linked into a program there.")
    return found


class _Files(msgspec.Struct, frozen=True):
    files: dict[str, File]
    schema: str


def read_files(folder: str | os.PathLike[str]) -> dict[str, File]:
    """The files that the manifest of a bundle, or of custom operators, names; raises BundleError."""
    found = _decoded(Path(folder) / MANIFEST, _Files)
    if found.schema not in (SCHEMA, *EARLIER_SCHEMAS, OPERATORS_SCHEMA):
        raise BundleError(f"'{Path(folder) / MANIFEST}' has the schema '{found.schema}'; this code reads '{SCHEMA}'.")
    return found.files


One = TypeVar("One", bound=msgspec.Struct)


def _decoded(path: Path, kind: type[One]) -> One:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BundleError(f"'{path}' cannot be read: {error.strerror}.") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BundleError(f"'{path}' is no manifest of a bundle: {error}") from error


def file_of(content: bytes | memoryview) -> File:
    """The record of a file's content."""
    return File(len(content), hashlib.sha256(content).hexdigest())


def steps_of(listing: Listing, nodes: Sequence[Sequence[Origin]] = ()) -> tuple[Step, ...]:
    """The runs of a listing, for the manifest; `nodes` are those that each run computes, where that is known."""
    kernels = {one.name: one for one in listing.kernels}
    steps = []
    for run, computed in zip(listing.runs, nodes or [()] * len(listing.runs), strict=True):
        kernel = kernels[run.kernel]
        constants = sum(
            operand.bytes for operand, place in zip(kernel.operands, run.operands, strict=True)
            if place.space == "weights"
        )  # fmt: skip
        steps.append(
            Step(
                kernel.name, kernel.blocks, kernel.flops, kernel.candidate, computed[0].name if computed else "",
                tuple(one.operator for one in computed), constants,
            )
        )  # fmt: skip
    return tuple(steps)


def ram_of(streamed: Streamed) -> Ram:
    """What a program within a budget takes."""
    parts = streamed.parts
    return Ram(
        parts.total, streamed.workers, parts.kept, parts.ring, parts.arena, parts.scratch, parts.arguments, parts.code,
        streamed.fetched_bytes, streamed.spilled_bytes,
    )  # fmt: skip


def claims_of(listing: Listing) -> tuple[int, ...]:
    """The runs in the order in which several workers claim them; empty where they are claimed as they stand."""
    found = tuple(run for run, _ in listing.ticketed.waits) if listing.ticketed is not None else ()
    return () if found == tuple(range(len(found))) else found


def shared_of(listing: Listing) -> dict[str, SharedKernel]:
    """The kernels that have another form for several workers."""
    if listing.ticketed is None:
        return {}
    kernels = {one.name: one for one in listing.kernels}
    return {
        mine.kernel: SharedKernel(kernels[other.kernel].blocks, kernels[other.kernel].candidate)
        for mine, other in zip(listing.runs, listing.ticketed.runs, strict=True)
        if mine.kernel != other.kernel
    }


def forms_of(
    runs: Sequence[Step], shared: Mapping[str, SharedKernel], several: Sequence[str]
) -> tuple[Step | SharedKernel, ...]:
    """By run the form of its kernel that several workers run; `several` are their kernels by name.

    Manifests of earlier versions name none; there all runs of a kernel have its other form, where it has one.
    """
    names = several or [""] * len(runs)
    return tuple(
        step if name == step.kernel else shared.get(step.kernel, step) for step, name in zip(runs, names, strict=True)
    )


def kernels_of(listing: Listing) -> tuple[Code, ...]:
    """The kernels of a listing, for the manifest."""
    return tuple(
        Code(one.name, one.blocks, tuple(Operand(operand.role, operand.bytes) for operand in one.operands))
        for one in listing.kernels
    )


def uses_of(listing: Listing, lowered: Lowered) -> tuple[Uses, ...]:
    """What the runs of a listing work on, by the buffers of the regions that it was made of."""
    numbers = {buffer: number for number, buffer in enumerate(lowered.temporaries)}
    kernels = {kernel.name: number for number, kernel in enumerate(listing.kernels)}
    several: list[int | None] = [None] * len(listing.runs)
    if listing.ticketed is not None:
        several = [kernels[run.kernel] for run in listing.ticketed.runs]
    uses = []
    for region, run, kernel in zip(lowered.regions, listing.runs, several, strict=True):
        places = (
            Use("arena", numbers[held.buffer], held.offset)
            if held.buffer in numbers
            else Use(place.space, place.argument, place.offset)
            for held, place in zip(region.places, run.operands, strict=True)
        )
        uses.append(Uses(kernel, tuple(places)))
    return tuple(uses)

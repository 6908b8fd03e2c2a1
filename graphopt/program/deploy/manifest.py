"""The manifest of a bundle: what is in it, what it needs, where its buffers lie."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from graphopt.errors import BundleError
from graphopt.program.deploy.runtime import SCHEMA
from graphopt.program.regions.region import Lowered
from kernels.emit.description import Description
from kernels.listing import Listing


class File(msgspec.Struct, frozen=True):
    """A file of the bundle."""

    bytes: int
    sha256: str


class Step(msgspec.Struct, frozen=True):
    """One run of the program."""

    kernel: str
    blocks: int
    flops: int
    candidate: str  # which tile sizes, for people


class PlannedBuffer(msgspec.Struct, frozen=True):
    """A buffer in the arena: bytes [offset, offset + bytes) during runs [begin, end)."""

    name: str
    offset: int
    bytes: int
    begin: int
    end: int


class Operand(msgspec.Struct, frozen=True, array_like=True):
    """An operand of a kernel: bytes from its first to its last element."""

    role: Literal["input", "constant", "output"]
    bytes: int


class Code(msgspec.Struct, frozen=True, array_like=True):
    """A kernel, of one worker's runs or of several workers'."""

    name: str
    blocks: int
    operands: tuple[Operand, ...]


class Use(msgspec.Struct, frozen=True, array_like=True):
    """Where an operand starts, whatever the plan: in a buffer of the arena, in the weights, in an argument."""

    space: Literal["arena", "weights", "input", "output"]
    number: int  # of the buffer, of the input or of the output; 0 in the weights
    offset: int  # bytes


class Uses(msgspec.Struct, frozen=True, array_like=True):
    """What one run works on, operand by operand."""

    several: int | None  # the kernel's number for several workers; None in a program for one
    operands: tuple[Use, ...]


class Manifest(msgspec.Struct, frozen=True):
    """What a bundle says of itself. Nothing in it depends on where or when it was written."""

    name: str
    program: Description
    runs: tuple[Step, ...]
    buffers: tuple[PlannedBuffer, ...]
    files: dict[str, File]  # all but the manifest
    producer: str = ""  # graphopt and its version; empty in manifests of earlier ones
    kernels: tuple[Code, ...] = ()  # in the library's order; none in manifests of earlier versions
    uses: tuple[Uses, ...] = ()  # by run; none in manifests of earlier versions, and of listings written by hand
    schema: str = SCHEMA


MANIFEST = "manifest.json"


def written(manifest: Manifest) -> bytes:
    """The manifest as its file has it: one line for each run, buffer, kernel and file."""
    fields = []
    for name, value in msgspec.to_builtins(manifest).items():
        if isinstance(value, dict):
            rows = [_json(key) + ": " + _json(held) for key, held in value.items()]
            text = "{\n  " + ",\n  ".join(rows) + "\n }"
        elif isinstance(value, list | tuple) and value:
            text = "[\n  " + ",\n  ".join(map(_json, value)) + "\n ]"
        else:
            text = _json(value)
        fields.append(f" {_json(name)}: {text}")
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of a bundle; raises BundleError."""
    path = Path(folder) / MANIFEST
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise BundleError(f"'{path}' cannot be read: {error.strerror}.") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BundleError(f"'{path}' is no manifest of a bundle: {error}") from error
    if found.schema != SCHEMA:
        raise BundleError(f"'{path}' has the schema '{found.schema}'; this code reads '{SCHEMA}'.")
    return found


def file_of(content: bytes | memoryview) -> File:
    """The record of a file's content."""
    return File(len(content), hashlib.sha256(content).hexdigest())


def steps_of(listing: Listing) -> tuple[Step, ...]:
    """The runs of a listing, for the manifest."""
    kernels = {one.name: one for one in listing.kernels}
    found = (kernels[run.kernel] for run in listing.runs)
    return tuple(Step(one.name, one.blocks, one.flops, one.candidate) for one in found)


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

"""The manifest of a bundle: what is in it, what it needs, where its buffers lie."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from graphopt.errors import BundleError
from graphopt.program.deploy.runtime import SCHEMA
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


class Manifest(msgspec.Struct, frozen=True):
    """What a bundle says of itself. Nothing in it depends on where or when it was written."""

    name: str
    program: Description
    runs: tuple[Step, ...]
    buffers: tuple[PlannedBuffer, ...]
    files: dict[str, File]  # all but the manifest
    producer: str = ""  # graphopt and its version; empty in manifests of earlier ones
    schema: str = SCHEMA


MANIFEST = "manifest.json"


def written(manifest: Manifest) -> bytes:
    """The manifest as its file has it."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


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

"""A listing: what a program does, step by step, as numbers and names. Emission turns it into machine code.

It knows neither how the order was found nor how memory was planned: a step names a kernel, and for each operand a place
in the arena, in the weights, or in what the caller passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import Kernel

ALIGNMENT = 64  # bytes: where buffers in the arena and in the weights start


class InvalidListing(KernelsError):
    """A listing whose steps do not fit its kernels or its memory."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand starts: bytes from the start of the arena, of the weights, or of an argument's data."""

    space: Literal["arena", "weights", "input", "output"]
    offset: int = 0
    argument: int = 0  # which input or output


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of the program: dense, row-major."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The size of its data."""
        size = self.dtype.bytes
        for dim in self.shape:
            size *= dim
        return size


@dataclass(frozen=True, slots=True)
class Run:
    """All blocks of a kernel, with a place for each of its operands, in their order."""

    kernel: str
    operands: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A program for one worker: its runs one after the other. Raises InvalidListing where it does not fit together."""

    name: str  # a C identifier
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    kernels: tuple[Kernel, ...]
    runs: tuple[Run, ...]
    arena_bytes: int
    weights_bytes: int

    def __post_init__(self) -> None:
        if not (self.name.isidentifier() and self.name.isascii()):
            raise InvalidListing(f"'{self.name}' is no C identifier.")
        for word, arguments in (("input", self.inputs), ("output", self.outputs)):
            names = [one.name for one in arguments]
            for name in names:
                if names.count(name) > 1:
                    raise InvalidListing(f"listing '{self.name}' has two {word}s called '{name}'.")
                if "\0" in name:
                    raise InvalidListing(f"the name of {word} {name!r} has a null character, where a C string ends.")
        kernels = {kernel.name: kernel for kernel in self.kernels}
        if len(kernels) != len(self.kernels):
            raise InvalidListing(f"two kernels of listing '{self.name}' have the same name.")
        for number, run in enumerate(self.runs):
            kernel = kernels.get(run.kernel)
            if kernel is None:
                raise InvalidListing(f"step {number} runs kernel '{run.kernel}', which the listing does not hold.")
            if len(run.operands) != len(kernel.operands):
                raise InvalidListing(
                    f"step {number} gives {len(run.operands)} operands to kernel '{kernel.name}', which has "
                    f"{len(kernel.operands)}."
                )
            for operand, place in zip(kernel.operands, run.operands, strict=True):
                room = self._room(place)
                if place.offset < 0 or place.offset + operand.bytes > room:
                    raise InvalidListing(
                        f"step {number}: operand '{operand.name}' of kernel '{kernel.name}' takes {operand.bytes:,} "
                        f"bytes from {place.offset:,} of the {place.space}, which has {room:,}."
                    )
                if place.offset % operand.dtype.bytes:
                    raise InvalidListing(
                        f"step {number}: operand '{operand.name}' of kernel '{kernel.name}' starts at byte "
                        f"{place.offset:,}, which is no multiple of its element's {operand.dtype.bytes} bytes."
                    )
                if operand.role == "output" and place.space in ("weights", "input"):
                    raise InvalidListing(
                        f"step {number}: kernel '{kernel.name}' writes operand '{operand.name}', which lies in the "
                        f"{place.space}: that is only read."
                    )

    def _room(self, place: Place) -> int:
        if place.space == "arena":
            return self.arena_bytes
        if place.space == "weights":
            return self.weights_bytes
        arguments = self.inputs if place.space == "input" else self.outputs
        return arguments[place.argument].bytes if 0 <= place.argument < len(arguments) else -1

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory that a worker needs."""
        return max((kernel.scratch_bytes for kernel in self.kernels), default=0)

"""A whole program from a listing: modules with all kernels and a small C interface, and their objects.

With P for the listing's name, a library of the objects exports

    P_version  P_describe  P_create  P_create_with  P_check  P_pool
    P_run  P_run_raw  P_dims  P_profile  P_after_fork  P_error  P_destroy  and P_set_dim where dims are free

which need the C library (and its mathematics, where a kernel calls it) and nothing else. The interface is a module of
its own, compiled for the oldest processor of the architecture: it is what finds out that a processor is too old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from kernels.emit.checksum import STRIPE, checksum, write_checksum
from kernels.emit.creation import write_creation
from kernels.emit.description import Description, describe
from kernels.emit.layout import layout_of
from kernels.emit.processor import Requirement, requirements, write_missing
from kernels.emit.refusal import text
from kernels.emit.running import write_running
from kernels.emit.version import Origin, write_version
from kernels.listing import InvalidListing, Listing
from kernels.llvm.function import Function
from kernels.llvm.load import ObjectCache
from kernels.llvm.module import Module
from kernels.target import Target

INTERFACE = (
    "version", "describe", "create", "create_with", "check", "pool", "run", "run_raw", "dims", "profile",
    "after_fork", "error", "destroy",
)  # fmt: skip


UNKNOWN = Origin()
SIZED = ("set_dim",)  # of a program with free dims alone


def interface_of(listing: Listing) -> tuple[str, ...]:
    """The functions of a program's library, without its name."""
    return (*INTERFACE, *SIZED) if listing.sizes else INTERFACE


class WrongWeights(InvalidListing):
    """Weights of another size than the listing's."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """The modules of a program, which are compiled one by one and linked."""

    modules: tuple[Module, ...]
    exported: tuple[str, ...]
    description: Description

    def objects(self, cache: ObjectCache | None = None) -> list[bytes]:
        """Machine code; raises CompileError."""
        return compiled(self.modules, cache)


def stored_weights(listing: Listing, weights: bytes | npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """The weights as their file has them: filled with zeros to a multiple of 64 bytes. Raises WrongWeights."""
    data = np.frombuffer(weights, np.uint8) if isinstance(weights, bytes) else weights.reshape(-1).view(np.uint8)
    if data.size != listing.weights_bytes:
        raise WrongWeights(
            f"listing '{listing.name}' has {listing.weights_bytes:,} bytes of weights, not {data.size:,}."
        )
    rest = -data.size % STRIPE
    return np.concatenate([data, np.zeros(rest, np.uint8)]) if rest else np.ascontiguousarray(data)


def emit(
    listing: Listing,
    target: Target,
    weights: npt.NDArray[np.uint8],
    needed: Sequence[Requirement] | None = None,
    origin: Origin = UNKNOWN,
) -> Emitted:
    """The program of a listing, for weights as `stored_weights` gives them, of which it keeps the checksum.

    `needed`: what to ask of the processor; None: all that code for the target needs. `origin` is what the library says
    of itself.
    """
    asked = tuple(requirements(target) if needed is None else needed)
    layout, total = layout_of(listing, target), checksum(weights)
    assert weights.size == layout.weights_bytes, "weights as they are stored"
    description = describe(listing, target, layout, asked, total)
    interface = Module(oldest(target))
    write_missing(interface, "lacking", asked)
    write_creation(interface, listing, layout, total)
    write_running(interface, listing, layout)
    _write_describe(interface, listing, description)
    write_version(interface, f"{listing.name}_version", origin)
    kernels = kernels_of(listing, target)
    write_checksum(kernels, f"{listing.name}_checksum")
    exported = tuple(f"{listing.name}_{one}" for one in interface_of(listing))
    return Emitted((interface, kernels), exported, description)


def kernels_of(listing: Listing, target: Target) -> Module:
    """All kernels of a listing as one module."""
    module = Module(target)
    for kernel in listing.kernels:
        module.include(kernel.module)
        module.rename(kernel.name, listing.symbol(kernel.name))
    return module


def compiled(modules: Sequence[Module], cache: ObjectCache | None = None) -> list[bytes]:
    """Machine code of each; raises CompileError."""
    cache = cache or ObjectCache(None)
    return [cache.get(module.text(), module.target) for module in modules]


def oldest(target: Target) -> Target:
    """A processor that every other of the architecture can stand in for."""
    oldest = target.architecture
    return replace(target, cpu=oldest.cpu, features=oldest.features, vector_bytes=16)


def _write_describe(module: Module, listing: Listing, description: Description) -> None:
    f = Function(module, f"{listing.name}_describe", (), exported=True, result="ptr")
    f.give(text(module, msgspec.json.encode(description).decode()))
    f.finish()

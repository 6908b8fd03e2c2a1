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
from kernels.emit.common import CommonFunctions, kernel_modules
from kernels.emit.creation import write_creation
from kernels.emit.description import Description, describe, with_points
from kernels.emit.fetches import transforms_of
from kernels.emit.layout import MemoryLayout, fetched_at, layout_of
from kernels.emit.making import NOTHING, Making, write_making, write_transform
from kernels.emit.processor import Requirement, requirements, write_missing
from kernels.emit.refusal import return_when, text
from kernels.emit.running import write_running
from kernels.emit.several import Level, Sizes, write_several
from kernels.emit.units import write_units
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


Points = Sequence[Sizes]


class WrongWeights(InvalidListing):
    """Weights of another size than the listing's."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """The modules of a program, which are compiled one by one and linked."""

    modules: tuple[Module, ...]
    exported: tuple[str, ...]
    description: Description
    descriptions: tuple[Description, ...] = ()  # of each level, where there are several programs

    def begin(self, cache: ObjectCache) -> None:
        """Have all modules compiled by the cache's thread."""
        for module in self.modules:
            cache.begin(module.text(), module.target)

    def objects(self, cache: ObjectCache | None = None) -> list[bytes]:
        """Machine code; raises CompileError."""
        return compiled(self.modules, cache)


def stored_weights(listing: Listing, weights: bytes | npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """The weights as their file has them: filled with zeros to a multiple of 64 bytes. Raises WrongWeights."""
    data, expected = _flat(weights), listing.weights_bytes
    if listing.ticketed is not None and listing.ticketed.fetched_bytes:
        expected = fetched_at(listing.weights_bytes) + listing.ticketed.fetched_bytes
    if data.size != expected:
        raise WrongWeights(f"listing '{listing.name}' has {expected:,} bytes of weights, not {data.size:,}.")
    return stored_bytes(data)


def _flat(weights: bytes | npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(weights, np.uint8) if isinstance(weights, bytes) else weights.reshape(-1).view(np.uint8)


def stored_bytes(weights: bytes | npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Bytes filled with zeros to a multiple of 64."""
    data = _flat(weights)
    rest = -data.size % STRIPE
    return np.concatenate([data, np.zeros(rest, np.uint8)]) if rest else np.ascontiguousarray(data)


def emit(
    listing: Listing,
    target: Target,
    weights: npt.NDArray[np.uint8],
    needed: Sequence[Requirement] | None = None,
    origin: Origin = UNKNOWN,
    making: Making = NOTHING,
) -> Emitted:
    """The program of a listing, for weights as `stored_weights` gives them, of which it keeps the checksum.

    `needed`: what to ask of the processor; None: all that code for the target needs. `origin` is what the library says
    of itself. With `making` the weights are those of the file, and the others of the listing are made of them.
    """
    asked, total = _asked(target, needed, [listing]), checksum(weights)
    layout = layout_of(listing, target, making=making)
    assert weights.size == layout.file_bytes, "weights as they are stored"
    description = describe(listing, target, layout, asked, total)
    interface = _interface(listing, target, layout, asked, total)
    texts = Module(oldest(target))
    _write_texts(texts, listing.name, [description], origin)
    exported = tuple(f"{listing.name}_{one}" for one in interface_of(listing))
    return Emitted((interface, texts, *_code(listing, target, making)), exported, description)


@dataclass(frozen=True, slots=True)
class Variant:
    """The listings of a library for processors of one level, one for each point; all with the same weights."""

    target: Target
    listings: tuple[Listing, ...]
    needed: tuple[Requirement, ...] | None = None  # to ask of the processor; None: all that code for the target needs
    making: Making = NOTHING  # of weights that this level has behind those of the file


def emit_several(
    name: str,
    choices: Sequence[Variant],
    points: Points,
    weights: npt.NDArray[np.uint8],
    origin: Origin = UNKNOWN,
) -> Emitted:
    """One library of several programs: the first choice that the processor can run, and of it the point of a call.

    The choices are those of processors of one architecture, the one that asks for the least last. The description is
    that of the first choice; the library gives that of the one that its processor runs.
    """
    total, modules, levels, descriptions = checksum(weights), [], [], []
    for number, choice in enumerate(choices):
        asked = _asked(choice.target, choice.needed, choice.listings)
        total_bytes = choice.making.start + choice.making.bytes if choice.making.steps else weights.size
        own = tuple(
            replace(one, name=f"{name}__{number}_{place}", weights_bytes=total_bytes)
            for place, one in enumerate(choice.listings)
        )
        levels.append(Level(asked, own))
        layouts = [layout_of(one, choice.target, own, choice.making) for one in own]
        common = CommonFunctions(f"{name}__{number}", choice.target)
        for one, layout in zip(own, layouts, strict=True):
            interface = _interface(one, choice.target, layout, asked, total)
            modules += [interface, *_code(one, choice.target, choice.making, common)]
        described = [
            describe(replace(one, name=name), choice.target, layout, asked, total)
            for one, layout in zip(own, layouts, strict=True)
        ]
        descriptions.append(with_points(described, points))
    front = Module(oldest(choices[0].target))
    write_several(front, name, levels, points, weights.size)
    _write_texts(front, name, descriptions, origin)
    exported = (*INTERFACE, "set_dim") if points[0] else INTERFACE
    return Emitted((front, *modules), tuple(f"{name}_{one}" for one in exported), descriptions[0], tuple(descriptions))


def _asked(
    target: Target, needed: Sequence[Requirement] | None, listings: Sequence[Listing]
) -> tuple[Requirement, ...]:
    if needed is not None:
        return tuple(needed)
    return requirements(target, units=any(one.uses_units for one in listings))


def _interface(
    listing: Listing, target: Target, layout: MemoryLayout, asked: tuple[Requirement, ...], total: int
) -> Module:
    module = Module(oldest(target))
    write_missing(module, "lacking", asked)
    write_creation(module, listing, layout, total)
    write_running(module, listing, layout)
    return module


def _code(
    listing: Listing, target: Target, making: Making, common: CommonFunctions | None = None
) -> tuple[Module, ...]:
    """The kernels, whose code is the same whatever the program is made for, and what makes and checks its weights."""
    beside = Module(target)
    if making.steps:
        write_making(beside, listing.symbol("make"), making.steps)
    write_units(beside, listing)
    write_checksum(beside, f"{listing.name}_checksum")
    for number, sums in enumerate(transforms_of(listing.ticketed)):
        write_transform(beside, listing.symbol(f"transform{number}"), sums)
    return *kernel_modules(listing.name, listing.kernels, target, common), beside


def compiled(modules: Sequence[Module], cache: ObjectCache | None = None) -> list[bytes]:
    """Machine code of each; raises CompileError."""
    cache, wanted = cache or ObjectCache(None), [(module.text(), module.target) for module in modules]
    cache.only(wanted)
    return [cache.get(*one) for one in wanted]


def oldest(target: Target) -> Target:
    """A processor that every other of the architecture can stand in for."""
    oldest = target.architecture
    return replace(target, cpu=oldest.cpu, features=oldest.features, vector_bytes=16)


def _write_texts(module: Module, name: str, descriptions: Sequence[Description], origin: Origin) -> None:
    """P_version and P_describe; of several descriptions that of the level that the processor has, else the last one."""
    write_version(module, f"{name}_version", origin)
    f = Function(module, f"{name}_describe", (), exported=True, result="ptr")
    texts = [text(module, msgspec.json.encode(one).decode()) for one in descriptions]
    if len(texts) > 1:
        level = f.call("level", result="i64")
        assert level is not None, "it gives a result"
        for number, one in enumerate(texts[:-1]):
            return_when(f, f.compare("eq", level, f.integer(number)), one)
    f.give(texts[-1])
    f.finish()

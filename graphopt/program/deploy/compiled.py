"""From a model to a program: optimize, lower, plan, emit, and compare with ONNX Runtime before anything is kept."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphopt.check.verification import Verification
from graphopt.errors import BundleError, OptionError, VerificationError
from graphopt.lazy import Lazy
from graphopt.program.deploy.bundle import (
    replaced_files,
    write_bundle,
    write_described,
    write_several,
    write_streamed,
)
from graphopt.program.deploy.custom.operators import Operators
from graphopt.program.deploy.hybrid import Hybrid
from graphopt.program.deploy.manifest import PlannedBuffer, uses_of
from graphopt.program.deploy.micro.files import micro_files
from graphopt.program.deploy.session import Program
from graphopt.program.deploy.sizes import Argument, Sizes
from graphopt.program.deploy.web.files import web_files
from graphopt.program.listing import Linked
from graphopt.program.regions.region import Lowered
from graphopt.program.storing import stored
from kernels import listing
from kernels.emit.program import Points, Variant
from kernels.target import Target

if TYPE_CHECKING:
    from graphopt.program import gpu
    from graphopt.program.deploy.cuda import bundle as cuda
else:  # with the scheduler's verifier
    gpu, cuda = Lazy("graphopt.program.gpu"), Lazy("graphopt.program.deploy.cuda.bundle")

Array = np.ndarray
# Elements as ONNX Runtime calls them, by the names that NumPy has and by those of listings.
_SESSION_TYPES = {
    "f32": "float", "float32": "float", "f64": "double", "float64": "double", "f16": "float16", "bf16": "bfloat16",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "u64": "uint64", "e4m3fn": "float8e4m3fn", "e4m3fnuz": "float8e4m3fnuz", "e5m2": "float8e5m2",
    "e5m2fnuz": "float8e5m2fnuz", "e8m0": "float8e8m0", "e2m1": "float4e2m1", "i4": "int4", "i2": "int2",
    "u4": "uint4", "u2": "uint2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Whole:
    """A model that kernels compute from end to end."""

    program: Program | None  # None: for a processor that this machine cannot stand in for
    lowered: Lowered
    linked: Linked


@dataclass(frozen=True, slots=True)
class Rounding:
    """Products and convolutions of a program in bfloat16, and what that was measured to cost."""

    errors: dict[str, float]  # of each output: the largest difference, in shares of its largest element
    tolerance: float
    rounded: int  # regions
    wide: int  # regions that stay in float32, as their rounding would have cost more


@dataclass(frozen=True, slots=True)
class Several:
    """Programs of one model that share their constants: for each level, best first, one for each point of sizes."""

    levels: tuple[tuple[Compiled, ...], ...]
    points: Points  # the sizes of dims, by name; one empty point for a model of one size

    @property
    def first(self) -> Compiled:
        """The program of the best level and the first point."""
        return self.levels[0][0]

    @property
    def programs(self) -> tuple[Compiled, ...]:
        """All of them."""
        return tuple(one for level in self.levels for one in level)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names, of the program for the feeds' dims at the best level that this machine has."""
        return self.of(feeds).run(names, feeds)

    def __call__(self, **feeds: Array) -> dict[str, Array]:
        """All outputs by name."""
        return self.of(feeds)(**feeds)

    def of(self, feeds: Mapping[str, Array]) -> Compiled:
        """The program for the dims of these feeds; raises OptionError where there is none."""
        level = next((some for some in self.levels if some[0].not_here is None), self.levels[0])
        shapes = {name: list(np.shape(array)) for name, array in feeds.items()}
        for one in level:
            if all(shapes.get(given.name) == given.shape for given in one.get_inputs()):
                return one
        if len(level) > 1 and all(one.name in shapes for one in level[0].get_inputs()):
            given = ", ".join(f"'{name}' {shape}" for name, shape in shapes.items())
            raise OptionError(f"the inputs have the shapes {given}; the program is made for {self.listed}.")
        return level[0]

    @property
    def listed(self) -> str:
        """The points, for people."""
        return "; ".join(", ".join(f"{name}={size}" for name, size in point) for point in self.points)

    @property
    def choices(self) -> list[Variant]:
        """The listings of each level."""
        return [Variant(level[0].target, tuple(one.linked.listing for one in level)) for level in self.levels]

    def save(self, folder: str | os.PathLike[str], name: str, digest: str) -> None:
        """Write the bundle; raises BundleError."""
        last = max((one.linked for one in self.programs), key=lambda one: one.weights.size)
        listings = [list(one.listings) for one in self.choices]
        kept = stored(self.first.target, listings, last.weights, last.held)
        choices = [
            Variant(level[0].target, made, None, making)
            for level, made, making in zip(self.levels, kept.levels, kept.makings, strict=True)
        ]
        write_several(folder, name, choices, self.points, kept.weights, digest=digest)


SHOWN = 8  # inputs that a program's own line lists


@dataclass(frozen=True, repr=False)
class Compiled:
    """A program that has been compared with the model it was made of, where this machine or an emulator can run it.

    Of a model with free dims it holds a program for every size, made and compared when the size is first run.
    What belongs to one whole program, as `linked` and `save`, raises BundleError where there is a `fallback`, and
    NotLowered where dims are free.
    """

    made: Whole | Hybrid | Operators | Sizes[Compiled] | Several
    target: Target
    seconds: float  # of everything but the comparison
    verification: Verification  # of the program beside ONNX Runtime; its status is "off" where it was not compared
    not_here: str | None = None  # why this machine cannot run the program, as a clause; None where it can
    not_compared: str | None = None  # why the program was not compared, as a clause; None where it was
    remade: str | None = None  # what was wrong with the first program, in whose place an exact one was made
    model_bytes: int = 0  # of the tensors in the model
    digest: str = ""  # SHA-256 of the model's file and of its data files; empty for a model that is none
    rounding: Rounding | None = None  # None: everything is in float32
    not_rounded: str | None = None  # why nothing is rounded that was asked to be, as a clause

    @property
    def max_abs(self) -> float:
        """The largest difference from ONNX Runtime; 0 where the program was not compared."""
        return self.verification.max_abs

    @property
    def max_rel(self) -> float:
        """The largest difference relative to each element and the largest beside it."""
        return self.verification.max_rel

    @property
    def fallback(self) -> tuple[str, ...]:
        """The operators (type and name) that run in ONNX Runtime, in order; empty for a whole program."""
        if isinstance(self.made, Sizes):
            return tuple(dict.fromkeys(name for one in self.made.programs.values() for name in one.fallback))
        return self.made.fallback if isinstance(self.made, Hybrid | Operators) else ()

    @property
    def sizes(self) -> tuple[Compiled, ...]:
        """The programs so far, of a model with free dims or listed ones; this one alone where none is free."""
        if isinstance(self.made, Several):
            return self.made.programs
        return tuple(self.made.programs.values()) if isinstance(self.made, Sizes) else (self,)

    @property
    def program(self) -> Program:
        """The loaded program; raises BundleError for one that this machine cannot run."""
        program = self._whole.program
        if program is None:
            raise BundleError(f"{self.not_here}; save the program, and run it where it is meant to run.")
        return program

    @property
    def programs(self) -> tuple[Linked, ...]:
        """The listings: of custom operators one for each, else as `linked`."""
        return self.made.linked if isinstance(self.made, Operators) else (self.linked,)

    @property
    def lowered(self) -> Lowered:
        """The regions."""
        return self._whole.lowered

    @property
    def linked(self) -> Linked:
        """The listing, the weights and the memory plan."""
        return self._whole.linked

    def __repr__(self) -> str:
        given = self.get_inputs()
        inputs = ", ".join(f"{one.name}: {one.type}{one.shape}" for one in given[:SHOWN])
        inputs += f" and {len(given) - SHOWN} more" if len(given) > SHOWN else ""
        if isinstance(self.made, Sizes):
            return f"<Compiled program({inputs}) for {self.target.level}, of {len(self.made.programs)} sizes so far>"
        verdict = "not compared" if self.not_compared is not None else f"within {self.max_rel:.0e} of ONNX Runtime"
        parts = f", {len(self.fallback)} operators in ONNX Runtime" if self.fallback else ""
        return f"<Compiled program({inputs}) for {self.target.level}, {verdict}{parts}>"

    def get_inputs(self) -> list[Argument]:
        """The inputs in order, each with `name`, `type` and `shape`, like ONNX Runtime's session."""
        return self._arguments[0]

    def get_outputs(self) -> list[Argument]:
        """The outputs in order, each with `name`, `type` and `shape`."""
        return self._arguments[1]

    @property
    def _arguments(self) -> tuple[list[Argument], list[Argument]]:
        if isinstance(self.made, Sizes):
            return self.made.inputs, self.made.outputs
        if isinstance(self.made, Several):
            return self.made.first._arguments
        if isinstance(self.made, Hybrid):
            ports = (self.made.inputs, self.made.results)
            return (
                [Argument(one.name, type_of(one.dtype and one.dtype.name), list(one.shape)) for one in ports[0]],
                [Argument(one.name, type_of(one.dtype and one.dtype.name), list(one.shape)) for one in ports[1]],
            )
        if isinstance(self.made, Operators):
            session = self.made.session
            return (
                [Argument(one.name, one.type, list(one.shape)) for one in session.get_inputs()],
                [Argument(one.name, one.type, list(one.shape)) for one in session.get_outputs()],
            )
        linked = self.made.linked.listing
        return (
            [Argument(one.name, type_of(one.dtype.value), _most(one)) for one in linked.inputs],
            [Argument(one.name, type_of(one.dtype.value), _most(one)) for one in linked.outputs],
        )

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names (None: all, in order), like ONNX Runtime's session."""
        return self._runner.run(names, feeds)

    def __call__(self, **feeds: Array) -> dict[str, Array]:
        """The outputs by name."""
        return self._runner(**feeds)

    def save(self, folder: str | os.PathLike[str], *, unchecked: bool = False) -> None:
        """Write the bundle, or the ONNX file with custom operators and their library.

        Raises BundleError, and VerificationError for a program that was not compared with its model, unless it is
        `unchecked` that is wanted.
        """
        if isinstance(self.made, Several):
            if not unchecked:
                for one in self.made.programs:
                    one.require_comparison()
            self.made.save(folder, self.linked.listing.name, self.digest)
            return
        if not unchecked:
            self.require_comparison()
        if isinstance(self.made, Operators):
            self.made.save(folder)
            return
        (linked,) = self.programs
        problem, plan = linked.problem, linked.plan
        buffers = tuple(
            PlannedBuffer(one.name, plan.offsets[one.name], one.size, one.begin, one.end) for one in problem.buffers
        )
        architecture = self.target.architecture
        if architecture.name == "wasm32" or architecture.is_bare:
            nodes, uses = [region.nodes for region in self.lowered.regions], uses_of(linked.listing, self.lowered)
            path = Path(folder)
            replaced, footprint = replaced_files(path), None
            if architecture.is_bare:
                program, footprint, files = micro_files(linked.listing, linked.weights, self.target)
            else:
                program, files = web_files(linked.listing, linked.weights, self.target)
            write_described(
                path, linked.listing, program, files, replaced, buffers, nodes, uses, self.digest, footprint
            )  # fmt: skip
            return
        if self.target.is_gpu:
            assert isinstance(linked, gpu.LinkedTasks), "a program of tasks"
            nodes, uses = [region.nodes for region in self.lowered.regions], uses_of(linked.listing, self.lowered)
            made = cuda.TaskProgram.of(linked, self.target)
            cuda.write_cuda(folder, made, buffers=buffers, nodes=nodes, uses=uses, digest=self.digest)
            return
        if linked.streamed is not None:
            nodes = [region.nodes for region in self.lowered.regions]
            write_streamed(
                folder, linked.listing, linked.streamed, self.target, buffers=buffers, nodes=nodes, digest=self.digest,
                cache=None if self._whole.program is None else self._whole.program.cache,
            )  # fmt: skip
            return
        kept = stored(self.target, [[linked.listing]], linked.weights, linked.held)
        ((listing,),) = kept.levels
        nodes, uses = [region.nodes for region in self.lowered.regions], uses_of(listing, self.lowered)
        cache = None if self._whole.program is None else self._whole.program.cache
        write_bundle(
            folder, listing, kept.weights, self.target, buffers=buffers, nodes=nodes, uses=uses, digest=self.digest,
            making=kept.makings[0], cache=cache,
        )  # fmt: skip

    def require_comparison(self) -> None:
        """Raise VerificationError for a program that was not compared with its model."""
        if self.not_compared is not None:
            raise VerificationError(
                f"the program was not compared with its model, so it is not saved: {self.not_compared}; pass "
                "unchecked=True to save it all the same."
            )

    @property
    def _runner(self) -> Program | Hybrid | Operators | Sizes[Compiled] | Several:
        return self.program if isinstance(self.made, Whole) else self.made

    @property
    def _whole(self) -> Whole:
        if isinstance(self.made, Whole):
            return self.made
        if isinstance(self.made, Several):
            return self.made.first._whole
        if isinstance(self.made, Sizes):
            raise self.made.refuse()
        if isinstance(self.made, Operators):
            raise BundleError("custom operators of ONNX Runtime are no program of their own; `programs` has theirs.")
        raise BundleError(
            f"{self.made.refusal}, so this model is no program of its own; in Python, "
            "graphopt.compile(model) runs just these in ONNX Runtime."
        )


def _most(output: listing.Argument) -> list[int | str | None]:
    free = {axis: size.formula for axis, size in output.free}
    return [None if axis in output.counted else free.get(axis, dim) for axis, dim in enumerate(output.shape)]


def type_of(name: str | None) -> str:
    """tensor(float) for f32; texts have no type of NumPy's."""
    return f"tensor({'string' if name is None else _SESSION_TYPES.get(name, name)})"

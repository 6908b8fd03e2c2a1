"""Products and dense convolutions, counted: what a block does on the PTX machine, in its inner loop.

Instructions are those of PTX, of which ptxas merges some. A depth of few slices has no loop that copies: most are on
their way before the first is multiplied. Transactions are sectors of 32 bytes, beside the fewest that hold as many
bytes; passes over the banks of shared memory are those of loads and of asynchronous copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.bar import Bar, Sheet
from bench.gpu.tiles import problems_of, tiled
from bench.peers import OURS
from bench.script import main
from kernels.kernel import Kernel
from kernels.ptx.emit import Assembled, assemble, assembler, ptx
from kernels.ptx.machine.grammar import PtxFunction
from kernels.ptx.machine.launching import Launch, Machine
from kernels.ptx.machine.loops import InnerLoop, inner_loops
from kernels.ptx.machine.reading import read
from kernels.ptx.machine.reports import Tally, Traffic
from kernels.ptx.program import program_module
from kernels.ptx.tasks.convolution import convolution
from kernels.ptx.tasks.product import product
from kernels.ptx.tasks.threads import RESIDENT, THREADS, WARP
from kernels.ptx.tasks.tile import TILES, TaskTile, instructions
from kernels.target import Target, cuda
from kernels.templates.convolution.problem import Convolution
from kernels.templates.gemm_problem import Gemm
from scheduler.device import Resources, device

ISSUE = 24
LEAST = 0.6  # of the inner loop's instructions that multiply and add
MOST = 2.0  # transactions for each that has to be: eight neighbours lie in one sector or two; strides skip others
BLOCKS = 2  # of a task that are run
# Rows, columns, depth: the lecture's product, a transformer's, square, with tails on all sides, tall, flat.
PRODUCTS = (
    (64, 128, 512), (128, 3072, 768), (512, 512, 512), (197, 1536, 384), (100, 75, 147), (4096, 64, 64), (16, 4096, 256)
)  # fmt: skip
MODELS = ("resnet18", "squeezenet1_1", "inception_v3")
_NOTHING = Traffic(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Counted:
    """A task, and what some of its blocks did."""

    name: str
    problem: Convolution | Gemm
    kernel: Kernel
    loop: InnerLoop | None
    tally: Tally
    assembled: Assembled | None

    @property
    def share(self) -> float | None:
        """Of the inner loop's instructions, those that multiply and add; None where no loop copies slices."""
        return self.loop.multiplies / self.loop.total if self.loop else None

    @property
    def tile(self) -> TaskTile:
        """The tile that was chosen."""
        return next(tile for tile in TILES if str(tile) == self.kernel.candidate)

    @property
    def estimated(self) -> float:
        """The share by the counts that choose a tile."""
        tile = self.tile
        return tile.rows * tile.columns * tile.slice / WARP / instructions(tile, tiled(self.problem))

    @property
    def conflicts(self) -> tuple[float, float]:
        """Passes over the banks above the least, for each access: of loads, and of copies."""
        spaces = self.loop.spaces if self.loop else {}
        found = [spaces.get(one, _NOTHING) for one in ("shared read", "shared copy")]
        reads, copies = ((one.transactions - one.least) / max(1, one.accesses) for one in found)
        return reads, copies

    @property
    def reads(self) -> float:
        """Transactions of reads of global memory for each that has to be, in the inner loop."""
        traffic = self.loop.spaces.get("global read", _NOTHING) if self.loop else _NOTHING
        return traffic.transactions / max(1, traffic.least)

    @property
    def writes(self) -> float:
        """The same of what is written."""
        traffic = self.tally.traffic.get("global write", _NOTHING)
        return traffic.transactions / max(1, traffic.least)

    @property
    def stride(self) -> int:
        """How far the pixels that neighbouring threads read lie apart."""
        return self.problem.strides[2] if isinstance(self.problem, Convolution) else 1

    @property
    def resident(self) -> int | None:
        """Blocks of a multiprocessor, by registers and shared memory; None without an assembler."""
        if self.assembled is None:
            return None
        shared = self.assembled.shared_memory + self.kernel.scratch_bytes
        return device("h200").occupancy(Resources(THREADS, self.assembled.registers, shared, opt_in=True))


def counted(problems: Sequence[tuple[str, Convolution | Gemm]], target: Target) -> list[Counted]:
    """Each task's first blocks, on the machine."""
    kernels = [
        convolution(one, target, f"task_{number}") if isinstance(one, Convolution)
        else product(one, target, f"task_{number}")
        for number, (_, one) in enumerate(problems)
    ]  # fmt: skip
    text = ptx(program_module(kernels, target, persistent=False), target.cpu)
    functions = read(text).functions
    assembled = assemble(text, target.cpu) if assembler() else {}
    found = []
    for (name, problem), kernel in zip(problems, kernels, strict=True):
        entry = f"launch_{kernel.name}"
        tally = _tally(text, kernel, entry)
        found.append(
            Counted(name, problem, kernel, _copying(functions[entry], kernel, tally), tally, assembled.get(entry))
        )  # fmt: skip
    return found


def _copying(function: PtxFunction, kernel: Kernel, tally: Tally) -> InnerLoop | None:
    """The loop that multiplies most of those that copy about as many slices as they multiply."""
    tile = next(tile for tile in TILES if str(tile) == kernel.candidate)
    for loop in inner_loops(function, tally):
        slices = loop.multiplies / (tile.rows * tile.columns * tile.slice / WARP)
        if loop.spaces.get("shared copy", _NOTHING).bytes > slices * 4 * (tile.rows + tile.columns) * tile.slice / 2:
            return loop
    return None


def _tally(text: str, kernel: Kernel, entry: str) -> Tally:
    machine = Machine(text)
    placed = [
        machine.memory.reserve(one.name, max(one.bytes, 4)) if one.role == "output"
        else machine.memory.place(one.name, np.zeros(max(one.bytes, 4), np.uint8), constant=True)
        for one in kernel.operands
    ]  # fmt: skip
    table = machine.memory.place("pointers", np.array([one.address for one in placed], np.uint64), constant=True)
    blocks = min(BLOCKS, kernel.blocks)
    launch = Launch(entry, (blocks, 1, 1), (THREADS, 1, 1), (table,), blocks, kernel.scratch_bytes)
    outcome = machine.run(launch)
    if outcome.faults:
        raise AssertionError(f"{kernel.name}: {outcome.faults[0]}")
    return outcome.tally


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each product and convolution."""
    target = cuda("sm_90")
    problems: list[tuple[str, Convolution | Gemm]] = [
        ("x".join(map(str, one)), Gemm(one[0], one[1], one[2])) for one in PRODUCTS
    ]
    problems += [
        (f"{name} {tiled(one).rows}x{tiled(one).columns}x{tiled(one).depth}", one)
        for name, one in problems_of(list(MODELS[: 1 if quick else len(MODELS)]), target)
    ]
    found = counted(problems, target)
    columns = (
        "task", "tile", "FMA %", "estimated %", "load conflicts", "copy conflicts", "reads x", "stride", "writes x",
        "registers", "shared", "resident", "planned",
    )  # fmt: skip
    sheet.table("inner loops of products and convolutions, counted, for sm_90", columns, [_row(one) for one in found])
    good = [one for one in found if _met(one)]
    least, name = min((one.share, one.name) for one in found if one.share is not None)
    figure = (
        f"{len(good)} of {len(found)}, {sum(one.share is None for one in found)} of them of few slices; least FMA "
        f"share {100 * least:.0f} % ({name}); conflicts an access {max(max(one.conflicts) for one in found):.2f}; "
        f"sectors {max(one.reads / one.stride for one in found):.2f} x for reads by stride, "
        f"{max(one.writes for one in found):.2f} x for writes"
    )
    text = f"inner loops: {LEAST:.0%} FMA, no bank conflicts, coalesced reads and writes, residency as planned"
    return [Bar(ISSUE, 4, text, "all", figure, len(good) == len(found))]


def _met(one: Counted) -> bool:
    resident = one.resident is None or one.resident >= RESIDENT
    coalesced = one.reads <= MOST * one.stride and one.writes <= MOST
    return (one.share is None or one.share >= LEAST) and not any(one.conflicts) and coalesced and resident


def _row(one: Counted) -> tuple[Any, ...]:
    registers = one.assembled.registers if one.assembled else None
    return (
        one.name, one.kernel.candidate, one.share and 100 * one.share, 100 * one.estimated, *one.conflicts,
        one.reads, one.stride, one.writes, registers, one.kernel.scratch_bytes, one.resident, RESIDENT,
    )  # fmt: skip


if __name__ == "__main__":
    main(measure)

"""Kernels launched on the machine: `Machine(text, memory).run(Launch(...), Adversary(...))`."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernels.errors import KernelsError
from kernels.ptx.machine import arithmetic_rows, memory_rows, running
from kernels.ptx.machine import numbers as n
from kernels.ptx.machine import state as s
from kernels.ptx.machine.buffers import Anything, DeviceMemory, Placed
from kernels.ptx.machine.code import Code
from kernels.ptx.machine.encoding import encode
from kernels.ptx.machine.executing import Engine
from kernels.ptx.machine.reading import BYTES, read
from kernels.ptx.machine.reports import Outcome, outcome

RunOrder = Literal["in order", "reversed", "random", "starved", "every instruction"]
ORDERS: tuple[RunOrder, ...] = ("in order", "reversed", "random", "starved", "every instruction")
LaunchArgument = Placed | int | float | bytes
MOST_THREADS = 1024


class BadLaunch(KernelsError):
    """A launch that the machine cannot run; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Adversary:
    """Who decides what runs next.

    In order, the first block runs until it waits; reversed, the last one; at random, any part of any warp for a few
    instructions; starved, one block, drawn, only runs when no other can; every instruction, any part for one.
    """

    order: RunOrder = "in order"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with blocks, threads of a block, arguments, how many blocks are resident, bytes of dynamic shared
    memory. `patience` is how many instructions of warps may pass without any change of memory, `most` how many at
    all."""

    kernel: str
    blocks: tuple[int, int, int]
    threads: tuple[int, int, int]
    arguments: tuple[LaunchArgument, ...]
    resident: int
    shared: int = 0
    patience: int = 1 << 26
    most: int = 1 << 40


class Machine:
    """A module on a device. Raises NotPtx for text that it does not know, BadLaunch for a launch that cannot be."""

    def __init__(self, text: str, memory: DeviceMemory | None = None) -> None:
        self.memory = memory or DeviceMemory()
        self._module = read(text)
        self._families = arithmetic_rows.families() | memory_rows.families()
        self._addresses: dict[str, int] = {}
        for variable in self._module.variables:
            if variable.space in ("global", "const"):
                size = BYTES[variable.kind]
                placed = self.memory.reserve(variable.name, size * variable.count, constant=variable.space == "const")
                self._addresses[variable.name] = placed.address
                values = list(variable.values or ()) + [0] * (variable.count - len(variable.values or ()))
                mask = (1 << 8 * size) - 1
                self.memory.write(placed, np.array([one & mask for one in values], f"u{size}"))
        self._codes: dict[str, Code] = {}

    def code(self, kernel: str) -> Code:
        """A kernel in numbers."""
        if kernel not in self._codes:
            self._codes[kernel] = encode(self._module, kernel, self._addresses, self._families)
        return self._codes[kernel]

    def run(self, launch: Launch, adversary: Adversary | None = None) -> Outcome:
        """Run a launch to its end, or to a fault that ends it; buffers have what it wrote."""
        adversary = adversary or Adversary()
        code = self.code(launch.kernel)
        _check(code, launch)
        draw = random.Random(f"{adversary.order} {adversary.seed}")
        state = _state(code, launch, self.memory, adversary, draw)
        engine = _engine(code, launch, adversary, draw, state)
        while True:
            status = running.run(engine, state, launch.patience, launch.most)
            if status != running.GROW:
                break
            state = _grown(state)
        size = len(self.memory.content)
        self.memory.content[:] = state.words[: size >> 2].view(np.uint8)
        shift = int(state.scalars[s.SHIFT])
        granules = np.repeat(state.shadow[: size >> shift, s.W_THREAD], 1 << shift)
        self.memory.written |= (granules != s.NEVER) & (granules != s.NOWHERE)
        self.memory.touched = np.repeat(state.touched, 1 << shift)
        blocks = int(np.prod(launch.blocks))
        left = blocks - int(state.scalars[s.NEXT_BLOCK])
        return outcome(self._module, code, self.memory, state, int(np.prod(launch.threads)), left)


def _check(code: Code, launch: Launch) -> None:
    threads = int(np.prod(launch.threads))
    if not 1 <= threads <= MOST_THREADS or int(np.prod(launch.blocks)) < 1 or launch.resident < 1:
        raise BadLaunch(f"{launch.kernel} needs 1 to {MOST_THREADS} threads, and at least one block, also resident.")
    if code.threads is not None and code.threads != threads:
        raise BadLaunch(f"{launch.kernel} was compiled for {code.threads} threads, not for {threads}.")
    if len(launch.arguments) != len(code.parameter_sizes):
        raise BadLaunch(
            f"{launch.kernel} takes {len(code.parameter_sizes)} arguments; the launch has {len(launch.arguments)}."
        )


def _packed(argument: LaunchArgument, size: int) -> bytes:
    if isinstance(argument, Placed):
        argument = argument.address
    if isinstance(argument, bytes):
        return argument.ljust(size, b"\0")
    if isinstance(argument, float):
        return struct.pack("<f" if size == 4 else "<d", argument)
    return (argument & (1 << 8 * size) - 1).to_bytes(size, "little")


def _state(
    code: Code, launch: Launch, memory: DeviceMemory, adversary: Adversary, draw: random.Random
) -> s.State:  # fmt: skip
    threads, blocks = int(np.prod(launch.threads)), int(np.prod(launch.blocks))
    resident = min(launch.resident, blocks)
    shared = -(-(code.shared + launch.shared) // 256) * 256
    local = -(-code.local // 256) * 256
    begin = len(memory.content)
    content = np.zeros(begin + resident * (shared + threads * local), np.uint8)
    content[:begin] = memory.content
    shift = {1: 0, 2: 1, 4: 2}[code.granule]
    shadow = np.empty((len(content) >> shift, 8), np.int64)
    shadow[:] = (s.NOWHERE, 0, -1, -1, 0, -1, -1, 0)
    granule = 1 << shift
    for one in memory.buffers:
        first = (one.address - n.GLOBAL_BASE) >> shift
        last = first + (one.size + granule - 1 >> shift)
        known = memory.written[first << shift : last << shift].reshape(-1, granule).any(axis=1)
        shadow[first:last, s.W_THREAD] = np.where(known, s.HOST, s.NEVER)
        if one.constant:
            shadow[first:last, s.FLAGS] = s.CONSTANT
    scalars = np.zeros(s.SCALARS, np.int64)
    scalars[[s.THREADS, s.BLOCKS, s.RESIDENT, s.WARPS]] = threads, blocks, resident, (threads + 31) // 32
    scalars[[s.GLOBAL_SIZE, s.SHARED_AT, s.SHARED_SIZE]] = begin, begin, shared
    scalars[[s.LOCAL_AT, s.LOCAL_SIZE, s.SHIFT]] = begin + resident * shared, local, shift
    scalars[[s.SEQ_CLOCK, s.CURRENT]] = -1, -1
    scalars[s.DRAWN] = draw.getrandbits(62) | 1
    scalars[s.POLICY], scalars[s.VICTIM] = ORDERS.index(adversary.order), draw.randrange(blocks)
    scalars[s.LATE] = 1 - adversary.seed % 2
    clocks, nodes = resident + 512, 16384
    scalars[[s.FREE_CLOCKS, s.FREE_NODES, s.SLOTS]] = clocks, nodes, max(code.slots, 1)
    return s.State(
        scalars, content.view(np.uint32), shadow, _linked(nodes, 8, s.NEXT, -1),
        _linked(clocks, threads * blocks + 2, -1, -1), np.zeros((threads * blocks, 8), np.int64),
        np.zeros((s.MOST_FAULTS, 8), np.int64), np.zeros((len(code.rows), 8), np.int64), np.zeros((32, 33), np.int64),
        np.zeros(begin >> shift, np.uint8),
    )  # fmt: skip


def _linked(count: int, columns: int, link: int, last: int, first: int = 0) -> Anything:
    """Rows of which each names the next free one in a column."""
    rows = np.zeros((count, columns), np.int64)
    rows[:, link] = np.arange(first + 1, first + count + 1)
    rows[-1, link] = last
    return rows


def _grown(state: s.State) -> s.State:
    """Twice the room for clocks and lists."""
    scalars = state.scalars
    clocks, nodes = len(state.clocks), len(state.nodes)
    more_clocks = _linked(clocks, state.clocks.shape[1], -1, int(scalars[s.CLOCK_HEAD]), clocks)
    more_nodes = _linked(nodes, 8, s.NEXT, int(scalars[s.NODE_HEAD]), nodes)
    scalars[[s.CLOCK_HEAD, s.NODE_HEAD]] = clocks, nodes
    scalars[[s.FREE_CLOCKS, s.FREE_NODES]] += clocks, nodes
    return state._replace(
        clocks=np.concatenate([state.clocks, more_clocks]), nodes=np.concatenate([state.nodes, more_nodes])
    )


def _engine(
    code: Code, launch: Launch, adversary: Adversary, draw: random.Random, state: s.State
) -> Engine:  # fmt: skip
    scalars = state.scalars
    resident, warps, blocks = (int(scalars[one]) for one in (s.RESIDENT, s.WARPS, s.BLOCKS))
    template = np.zeros(max(code.slots, 1), np.uint64)
    for slot, bits in code.constants:
        template[slot] = bits
    packed = [_packed(*one) for one in zip(launch.arguments, code.parameter_sizes, strict=True)]
    for part in code.parameters:
        content = packed[part.parameter][part.offset : part.offset + part.size]
        template[part.slot] = int.from_bytes(content, "little")
    regs = np.zeros(resident * warps * len(template) * n.LANES, np.int64)
    order = list(range(blocks))
    if adversary.order == "reversed":
        order.reverse()
    elif adversary.order != "in order":
        draw.shuffle(order)
    places = np.zeros((resident, 4), np.int64)
    places[:, s.S_BLOCK] = -1
    scratch = np.zeros((24, n.LANES), np.float64)
    setup = [*launch.threads, *launch.blocks, launch.shared, code.shared + launch.shared, *order]
    specials = [one for pair in code.specials for one in pair]
    rows = code.rows.copy()
    rows[:, n.MEET] = code.meets
    return Engine(
        rows, regs, regs.view(np.float32), regs.view(np.float64),
        np.zeros((resident * warps, s.PARTS, s.PART), np.int64), places,
        np.full((resident, s.BARRIERS, 4), (0, 0, -1, 0), np.int64),
        np.concatenate([np.array(setup, np.int64), template.view(np.int64), np.array(specials, np.int64)]),
        scratch.view(np.int64), scratch, np.zeros(MOST_THREADS + 32, np.int64),
    )  # fmt: skip

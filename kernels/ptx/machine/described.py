"""A launch as a file says it: buffers, arguments, blocks, as JSON."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from kernels.ptx.machine.buffers import Placed
from kernels.ptx.machine.launching import BadLaunch, Launch, LaunchArgument, Machine

_TYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "i32": np.int32, "u32": np.uint32, "i64": np.int64,
    "u8": np.uint8,
}  # fmt: skip


class DescribedBuffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many elements of a type: with values, drawn by a seed, or written by nobody; `constant` if only read."""

    type: Literal["f32", "f64", "f16", "i32", "u32", "i64", "u8"]
    count: int
    values: list[float] | None = None
    seed: int | None = None
    constant: bool = False


class DescribedLaunch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel, its blocks and threads in one to three dims, and arguments: a buffer's name, a number, a float."""

    kernel: str
    blocks: list[int]
    threads: list[int]
    arguments: list[str | int | float]
    buffers: dict[str, DescribedBuffer] = {}
    resident: int = 1 << 10
    shared: int = 0


def described(content: bytes) -> DescribedLaunch:
    """What a file says; raises BadLaunch where that is no launch."""
    try:
        return msgspec.json.decode(content, type=DescribedLaunch)
    except msgspec.DecodeError as error:
        raise BadLaunch(f"The launch cannot be read: {error}.") from error


def prepared(machine: Machine, said: DescribedLaunch) -> tuple[Launch, dict[str, Placed]]:
    """The launch on a machine, with its buffers placed."""
    placed = {name: _placed(machine, name, one) for name, one in said.buffers.items()}
    arguments: list[LaunchArgument] = []
    for one in said.arguments:
        if isinstance(one, str) and one not in placed:
            raise BadLaunch(f"The argument {one!r} is none of the buffers: {', '.join(sorted(placed)) or 'none'}.")
        arguments.append(placed[one] if isinstance(one, str) else one)
    launch = Launch(
        said.kernel, _three(said.blocks), _three(said.threads), tuple(arguments), said.resident, said.shared
    )  # fmt: skip
    return launch, placed


def _three(dims: list[int]) -> tuple[int, int, int]:
    if not 1 <= len(dims) <= 3:
        raise BadLaunch(f"Blocks and threads have one to three dims, not {len(dims)}.")
    x, y, z = (*dims, 1, 1)[:3]
    return x, y, z


def _placed(machine: Machine, name: str, one: DescribedBuffer) -> Placed:
    dtype = np.dtype(_TYPES[one.type])
    if one.values is not None:
        if len(one.values) != one.count:
            raise BadLaunch(f"Buffer {name!r} has {len(one.values)} values for {one.count} elements.")
        return machine.memory.place(name, np.array(one.values, dtype), constant=one.constant)
    if one.seed is not None:
        drawn = np.random.default_rng(one.seed).normal(0, 1, one.count)
        return machine.memory.place(name, drawn.astype(dtype), constant=one.constant)
    return machine.memory.reserve(name, dtype.itemsize * one.count, constant=one.constant)

"""Small kernels in PTX, and running them: what the tests of the machine share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.ptx.machine.buffers import Placed
from kernels.ptx.machine.launching import Adversary, Launch, Machine
from kernels.ptx.machine.reports import Outcome

Anything = npt.NDArray[Any]
REGISTERS = """
 .reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<48>; .reg .b64 %d<24>;
"""


def entry(body: str, pointers: int = 2, shared: int = 0, outside: str = "") -> str:
    """A kernel `k` of pointers p0, p1, ... in %d0, %d1, ...; %r0 is the thread, %r1 the block, %d20 four times %r0."""
    parameters = ", ".join(f".param .u64 p{one}" for one in range(pointers))
    loads = "".join(f" ld.param.b64 %d{one}, [p{one}];\n" for one in range(pointers))
    tile = f" .shared .align 16 .b8 tile[{shared}];\n" if shared else ""
    return (
        f".version 7.8\n.target sm_90\n.address_size 64\n{outside}.visible .entry k({parameters})\n{{{REGISTERS}{tile}"
        f"{loads} mov.u32 %r0, %tid.x;\n mov.u32 %r1, %ctaid.x;\n mul.wide.u32 %d20, %r0, 4;\n{body}\n ret;\n}}\n"
    )


def run(
    text: str, buffers: Sequence[Anything | int], blocks: int = 1, threads: int = 32, resident: int = 64,
    adversary: Adversary | None = None, patience: int = 1 << 20,
) -> tuple[Outcome, list[Anything]]:  # fmt: skip
    """Run `k`; an array is a buffer with its elements, a number one of so many unwritten bytes."""
    machine = Machine(text)
    placed: list[Placed] = []
    for number, one in enumerate(buffers):
        if isinstance(one, int):
            placed.append(machine.memory.reserve(f"p{number}", one))
        else:
            placed.append(machine.memory.place(f"p{number}", one))
    launch = Launch("k", (blocks, 1, 1), (threads, 1, 1), tuple(placed), resident, patience=patience)
    outcome = machine.run(launch, adversary)
    kinds = [np.dtype(np.uint32) if isinstance(one, int) else one.dtype for one in buffers]
    return outcome, [machine.memory.read(*pair) for pair in zip(placed, kinds, strict=True)]


def lanes(operation: str, inputs: Mapping[str, Anything], result: str, width: int) -> Anything:
    """What an operation on registers gives for 32 lanes: inputs by register, the result's register and its bits."""
    body = []
    for number, (register, values) in enumerate(inputs.items(), 1):
        bits = values.dtype.itemsize * 8
        body.append(f" mul.wide.u32 %d21, %r0, {bits // 8}; add.s64 %d21, %d{number}, %d21;")
        body.append(f" ld.global.b{bits} {register}, [%d21];")
    body.append(f" {operation}")
    if result.startswith("%p"):
        body.append(f" selp.b32 %r40, 1, 0, {result};")
        result = "%r40"
    body.append(f" mul.wide.u32 %d21, %r0, {width // 8}; add.s64 %d21, %d0, %d21; st.global.b{width} [%d21], {result};")
    arrays: list[Anything | int] = [np.zeros(32, f"u{width // 8}"), *inputs.values()]
    outcome, found = run(entry("\n".join(body), len(arrays)), arrays)
    assert not outcome.faults, [str(one) for one in outcome.faults]
    return found[0]

"""Every float model of the zoo as PTX that ptxas takes: registers, and what a thread spills."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import models
from bench.bar import Bar, Sheet
from bench.gpu.programs import lowered_for
from bench.peers import OURS
from bench.script import main
from graphopt.errors import GraphoptError
from graphopt.program.deploy.cuda.bundle import TaskProgram
from graphopt.program.gpu import link_tasks
from kernels.errors import KernelsError
from kernels.ptx.emit import assemble
from kernels.target import cuda

ISSUE = 24
PROCESSORS = ("sm_80", "sm_90")
QUICK = ("mlp_tiny", "dscnn_kws", "gru_op", "resnet18", "squeezenet1_1")
APART = ("resnet18_qdq", "bert_small_dynquant")  # of bytes


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model and processor."""
    names = [one for one in (QUICK if quick else models.names()) if one not in APART]
    rows = [row for name in names for processor in PROCESSORS for row in _rows(sheet, name, processor)]
    sheet.table(
        "programs of GPUs, assembled",
        ("model", "processor", "regions", "kernels", "thread by thread", "registers", "spilled bytes", "s", "refused"),
        rows,
    )
    taken = sum(not row[-1] for row in rows)
    spilling = sum(bool(row[6]) for row in rows)
    figure = f"{taken} of {len(rows)} assembled, {spilling} spill"
    text = "float models as PTX that ptxas takes for sm_80 and sm_90, without spills"
    return [Bar(ISSUE, 3, text, "all", figure, taken == len(rows) and not spilling)]


def _rows(sheet: Sheet, name: str, processor: str) -> Sequence[tuple[str | int | float, ...]]:
    begun = time.monotonic()
    target = cuda(processor)
    try:
        lowered = lowered_for(name, target)[1]
        linked = link_tasks(lowered, name)
        found = assemble(TaskProgram.of(linked, target).text, processor)
    except (KernelsError, GraphoptError) as error:
        return [(name, processor, "", "", "", "", "", time.monotonic() - begun, str(error)[:200])]
    kernels = linked.listing.kernels
    singly = sum("single threads" in kernel.candidate for kernel in kernels)
    registers = max(one.registers for one in found.values())
    spills = sum(one.spills for one in found.values())
    sheet.console.print(f"{name}, {processor}: {registers} registers, {spills} bytes spilled")
    return [
        (name, processor, len(lowered.regions), len(kernels), singly, registers, spills, time.monotonic() - begun, "")
    ]


if __name__ == "__main__":
    main(measure)

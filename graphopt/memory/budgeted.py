"""What keeping a memory budget gave: the record that is printed, and the model."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import onnx_ir as ir

# ONNX Runtime's options under which a plan is what it takes: those of `contract_options`.
KEEPING = "enable_cpu_mem_arena=False, enable_mem_reuse=False, enable_mem_pattern=False"


class BudgetRecord(msgspec.Struct, frozen=True):
    """What a memory budget took, as `--json` prints it. Sizes in bytes, of an arena in file order."""

    budget: int
    sharing: bool  # results in place and slices are counted as such; without, every result has bytes of its own
    arena_given: int  # in the order that the passes left
    arena_best: int  # in the best order that computes nothing again
    arena: int
    added_nodes: int  # that compute a value again or a tile, or tie such a node to its place
    tiled_regions: int
    extra_time_percent: float  # estimated from flops and bytes
    bit_equal: (
        bool  # run beside the model that it was made of, and equal; false: the check is off, or could not be made
    )
    keeping: str = KEEPING  # ONNX Runtime's options under which the plan survives
    aim: int = 0  # what was planned for: the budget, or less where ONNX Runtime took more than planned
    heap_before: int | None = None  # bytes of heap in ONNX Runtime with these options; None: not measured
    heap: int | None = None
    slowdown_percent: float | None = None  # measured there, by processor time on one thread


@dataclass(frozen=True, slots=True)
class Budgeted:
    """The model that keeps its budget, and what that cost."""

    model: ir.Model
    record: BudgetRecord
    not_compared: str | None  # why a comparison that was asked for could not be made; None where it was, or is off

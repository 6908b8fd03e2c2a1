"""From a plan to the record that is shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from graphopt.flows.records.alias_classes import alias_classes
from graphopt.flows.records.memory import (
    BufferLine,
    CurvePoint,
    GivenLine,
    LeverLine,
    MemoryRecord,
    PlanLine,
    StepLine,
    TierReport,
    WhatIfLine,
)
from graphopt.memory.plan import Planned
from graphopt.memory.tensors import ModelMemory
from memplan.bounds import live_bytes
from memplan.problem import Buffer


def memory_record(
    memory: ModelMemory,
    planned: Planned,
    *,
    model: str,
    dims: Mapping[str, int],
    order: str,
    given_time: float,
    order_bound: int = 0,
    levers: Sequence[LeverLine] = (),
    plans: Sequence[PlanLine] = (),
    curve: Sequence[CurvePoint] = (),
    tiers: TierReport | None = None,
    places: Mapping[str, str] | None = None,
    what_if: Sequence[WhatIfLine] = (),
    formula: str | None = None,
    budget: int | None = None,
    notes: Sequence[str] = (),
) -> MemoryRecord:
    """Everything that the terminal, the page and the JSON say."""
    shown = plan_line(memory, planned, order, given_time, places or {})
    buffers, steps, peak_step = shown.buffers, shown.steps, shown.peak_step
    at_peak = [
        msgspec.structs.replace(one.root, begin=one.begin, end=one.end)
        for one in alias_classes(buffers)
        if one.begin <= peak_step < one.end
    ]
    return MemoryRecord(
        model=model,
        dims=dict(dims),
        order=order,
        peak=shown.peak,
        lower_bound=shown.lower_bound,
        order_bound=order_bound,
        arena=shown.arena,
        fragmentation=shown.fragmentation,
        proved_optimal=planned.packing.proved_optimal,
        solver=planned.packing.solver,
        weights=memory.weights_bytes,
        inputs=memory.input_bytes,
        peak_step=peak_step,
        peak_operator=f"{steps[peak_step].operator} ({steps[peak_step].type})" if steps else "",
        at_peak=tuple(sorted(at_peak, key=lambda line: (-line.bytes, line.name))),
        levers=tuple(levers),
        buffers=buffers,
        steps=steps,
        given=_given(memory),
        plans=tuple(plans),
        curve=tuple(curve),
        tiers=tiers,
        what_if=tuple(what_if),
        formula=formula,
        budget=budget,
        extra_time_percent=shown.extra_time_percent,
        notes=(*memory.notes, *notes),
    )


def plan_line(
    memory: ModelMemory, planned: Planned, name: str, given_time: float, places: Mapping[str, str] | None = None
) -> PlanLine:
    """One plan with its buffers and steps; `given_time` is that of the file's order, `places` tiers by buffer."""
    live = _live_by_step(planned)
    operators = {operator.name: operator for operator in memory.graph.operators}
    seen: set[str] = set()
    steps = []
    for step, operator in enumerate(planned.order):
        kind = memory.nodes[operator].op_type
        steps.append(StepLine(operator, kind, live[step], operators[operator].time, operator in seen))
        seen.add(operator)
    outputs = {value.name for value in memory.graph.values if value.kind == "output"}
    return PlanLine(
        name=name,
        peak=planned.peak,
        lower_bound=planned.packing.lower_bound,
        arena=planned.packing.arena_size,
        fragmentation=planned.packing.fragmentation,
        peak_step=max(range(len(live)), key=lambda step: (live[step], -step), default=0),
        extra_time_percent=extra_percent(planned.time, given_time),
        buffers=tuple(
            _line(memory, planned, buffer, (places or {}).get(buffer.name), outputs)
            for buffer in planned.problem.buffers
        ),
        steps=tuple(steps),
    )


def _given(memory: ModelMemory) -> tuple[GivenLine, ...]:
    lines = []
    for value in memory.graph.values:
        if value.kind == "constant":
            tensor = memory.tensors[value.name]
            kind: Literal["weight", "input"] = "weight" if value.name in memory.weights else "input"
            lines.append(
                GivenLine(
                    value.name, value.size, tensor.dtype, tensor.shape, tensor.users, kind, tensor.origin.module,
                    tensor.origin.source,
                )
            )  # fmt: skip
    return tuple(sorted(lines, key=lambda line: (-line.bytes, line.name)))


def extra_percent(time: float, given: float) -> float:
    """How much longer, in percent."""
    return 100 * (time - given) / given if given else 0.0


def _line(
    memory: ModelMemory, planned: Planned, buffer: Buffer, tier: str | None, outputs: Collection[str]
) -> BufferLine:
    tensor = None if buffer.value is None else memory.tensors.get(buffer.value)
    return BufferLine(
        name=buffer.name,
        bytes=buffer.size,
        padded=-(-buffer.size // planned.problem.granularity) * planned.problem.granularity,
        offset=planned.packing.offsets[buffer.name],
        begin=buffer.begin,
        end=buffer.end,
        dtype="" if tensor is None else tensor.dtype,
        shape=() if tensor is None else tensor.shape,
        producer="workspace" if tensor is None else tensor.producer,
        users=() if tensor is None else tensor.users,
        inside=None if buffer.alias is None else buffer.alias.of,
        tier=tier,
        kind="scratch" if tensor is None else "output" if buffer.value in outputs else "activation",
        module="" if tensor is None else tensor.origin.module,
        source="" if tensor is None else tensor.origin.source,
    )


def _live_by_step(planned: Planned) -> list[int]:
    changes = live_bytes(planned.problem)
    live, position, now = [], 0, 0
    for step in range(len(planned.order)):
        while position < len(changes) and changes[position][0] <= step:
            now = changes[position][1]
            position += 1
        live.append(now)
    return live

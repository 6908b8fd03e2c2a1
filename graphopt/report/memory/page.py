"""The memory report as a page: plans drawn, searched and compared; one file that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt.flows.records.alias_classes import AliasClass, alias_classes
from graphopt.flows.records.memory import BufferLine, GivenLine, MemoryRecord, PlanLine, StepLine
from graphopt.report.interactive import Texts, interactive_page

LISTED = 20  # buffers at the peak that are listed where no script runs
MOVES = 200  # moves in the table


def memory_page(record: MemoryRecord, beside: Sequence[MemoryRecord] = ()) -> bytes:
    """The page, UTF-8. Plans of the records `beside` can be chosen to be shown beside this one's."""
    return interactive_page(
        "memory.html",
        _data(record, beside),
        ("curves.js", "memory.js"),
        {},
        record=record,
        listed=record.at_peak[:LISTED],
        kinds=_kinds(record),
        moves=() if record.tiers is None else record.tiers.moves[:MOVES],
        again=sum(step.again for step in record.steps),
    )


def _kinds(record: MemoryRecord) -> list[tuple[str, int, int]]:
    """What is live at the peak by kind: bytes and number, the arena's first."""
    found: dict[str, tuple[int, int]] = {}
    peak = [(one.kind, one.padded) for one in record.at_peak]
    for kind, size in (*peak, *((line.kind, line.bytes) for line in record.given)):
        total, count = found.get(kind, (0, 0))
        found[kind] = total + size, count + 1
    return [(kind, *found[kind]) for kind in ("activation", "output", "scratch", "input", "weight") if kind in found]


def _data(record: MemoryRecord, beside: Sequence[MemoryRecord]) -> dict[str, Any]:
    texts = Texts()
    results = [_result(texts, _taken(record, _name(record)), record.budget, given=True)]
    results += [_result(texts, plan, None, given=True) for plan in record.plans]
    for number, other in enumerate(beside):
        mark = f"{other.model} ({number + 1})" if other.model == record.model else other.model
        results.append(_result(texts, _taken(other, f"{mark}: {_name(other)}"), other.budget, given=False))
        results += [_result(texts, plan, None, given=False, of=f"{mark}: ") for plan in other.plans]
    curve = sorted(record.curve, key=lambda point: point.arena)
    return {
        "results": results,
        "given": _given(texts, record.given),
        "curve": [
            {
                "arena": point.arena, "extra": point.extra_time_percent, "recomputed": point.recomputed,
                "tiled": point.tiled, "plan": point.plan,
            }
            for point in curve
        ],
        "tiers": [] if record.tiers is None else [
            {"name": tier.name, "capacity": tier.capacity, "occupancy": tier.occupancy} for tier in record.tiers.tiers
        ],
        "strings": texts.listed,
    }  # fmt: skip


def _name(record: MemoryRecord) -> str:
    """What the plan that was taken is called."""
    order = {"given": "the file's order", "best": "the best order"}.get(record.order, record.order)
    return f"this plan: {order}"


def _taken(record: MemoryRecord, name: str) -> PlanLine:
    return PlanLine(
        name, record.peak, record.lower_bound, record.arena, record.fragmentation, record.peak_step,
        record.extra_time_percent, record.buffers, record.steps,
    )  # fmt: skip


def _result(texts: Texts, plan: PlanLine, budget: int | None, *, given: bool, of: str = "") -> dict[str, Any]:
    return {
        "name": f"{of}{plan.name}", "peak": plan.peak, "lower_bound": plan.lower_bound, "arena": plan.arena,
        "fragmentation": plan.fragmentation, "peak_step": plan.peak_step, "extra": plan.extra_time_percent,
        "budget": budget, "given": given, "steps": _steps(texts, plan.steps),
        "buffers": _buffers(texts, alias_classes(plan.buffers)),
    }  # fmt: skip


def _steps(texts: Texts, steps: Sequence[StepLine]) -> dict[str, list[int]]:
    return {
        "operator": texts.numbers(step.operator for step in steps),
        "type": texts.numbers(step.type for step in steps),
        "live": [step.live for step in steps],
        "time": [round(step.time) for step in steps],
        "again": [int(step.again) for step in steps],
    }


def _buffers(texts: Texts, shared: Sequence[AliasClass]) -> dict[str, list[Any]]:
    """The buffers that take bytes; what lies inside one is named by it."""
    roots = [one.root for one in shared]
    return {
        **_tensors(texts, roots),
        "kind": texts.numbers(_kind(one) for one in shared),
        "padded": [root.padded for root in roots],
        "offset": [root.offset for root in roots],
        "begin": [one.begin for one in shared],
        "end": [one.end for one in shared],
        "producer": texts.numbers(root.producer for root in roots),
        "holds": [texts.numbers(inner.name for inner in one.inside) for one in shared],
    }


def _kind(shared: AliasClass) -> str:
    """An output where any of those that share the bytes is one."""
    return "output" if any(one.kind == "output" for one in (shared.root, *shared.inside)) else shared.root.kind


def _given(texts: Texts, lines: Sequence[GivenLine]) -> dict[str, list[Any]]:
    return {**_tensors(texts, lines), "kind": texts.numbers(line.kind for line in lines)}


def _tensors(texts: Texts, lines: Sequence[BufferLine] | Sequence[GivenLine]) -> dict[str, list[Any]]:
    return {
        "name": texts.numbers(line.name for line in lines),
        "bytes": [line.bytes for line in lines],
        "dtype": texts.numbers(line.dtype for line in lines),
        "shape": texts.numbers(" × ".join(map(str, line.shape)) for line in lines),
        "module": texts.numbers(line.module for line in lines),
        "source": texts.numbers(line.source for line in lines),
        "users": [texts.numbers(line.users) for line in lines],
    }

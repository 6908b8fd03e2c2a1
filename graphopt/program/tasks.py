"""A model as a task graph: regions with what they compute, and who needs what of whom.

Regions are those of lowering, so that what is fused in a program is one region here. Where an operator has no kernel,
the model's nodes are taken instead, joined where they work in place. Each region's kernels come from the scheduler's
own roofline: figures made with them are simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.memory.tensors import model_memory
from graphopt.program.order import region_graph
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.target import Target
from memplan.condense import condense
from memplan.graph import Graph
from scheduler.device import Device
from scheduler.roofline import Work, candidates
from scheduler.tasks import Need, Region, TaskGraph

FLOP_NS = 1.0e9  # a machine of so many operations a second takes a nanosecond for each: times are operations


@dataclass(frozen=True, slots=True)
class Tasks:
    """The task graph, and the buffers between its regions for a memory plan."""

    graph: TaskGraph
    sizes: Mapping[str, int]  # bytes of each buffer
    reads: Mapping[str, tuple[str, ...]]  # region -> buffers
    writes: Mapping[str, tuple[str, ...]]
    kept: frozenset[str]  # buffers that live to the end
    lowered: bool  # whether the regions are those of lowering
    operators: Mapping[str, str]  # region -> operator of its first node; "copy" where it has none


def tasks_of(model: ir.Model, device: Device, target: Target, name: str) -> Tasks:
    """The tasks of a model whose dims are all numbers. Raises OptionError for sizes that nothing tells."""
    try:
        lowered = lower(model, target)
    except NotLowered:
        return _of_nodes(model, device, name)
    return _of_regions(lowered, device, name)


def region_names(lowered: Lowered) -> list[str]:
    """What each region is called in a task graph: its position and its first node."""
    return [
        f"{position}:{region.nodes[0] if region.nodes else region.kernel.name}"
        for position, region in enumerate(lowered.regions)
    ]


def _of_regions(lowered: Lowered, device: Device, name: str) -> Tasks:
    regions, names, kinds = [], {}, {}
    written = {buffer for region in lowered.regions for buffer in region.writes}
    for position, (region, called) in enumerate(zip(lowered.regions, region_names(lowered), strict=True)):
        kernel = region.kernel
        names[str(position)] = called
        kinds[names[str(position)]] = region.nodes[0].operator if region.nodes else "copy"
        outputs = sum(one.elements for one in kernel.operands if one.role == "output")
        work = Work(
            names[str(position)], kernel.flops, sum(one.bytes for one in kernel.operands if one.role != "output"),
            sum(one.bytes for one in kernel.operands if one.role == "output"), outputs, _depth(kernel.flops, outputs),
            convolution=any(node.operator == "Conv" for node in region.nodes),
            recent_bytes=sum(
                one.bytes for place, one in zip(region.places, kernel.operands, strict=True)
                if one.role == "input" and place.buffer in written
            ),
            blocks=kernel.blocks,
        )  # fmt: skip
        regions.append(Region(names[str(position)], candidates(device, work), kernel.name))
    return _tasks(region_graph(lowered), regions, names, kinds, name, lowered=True)


def _of_nodes(model: ir.Model, device: Device, name: str) -> Tasks:
    memory = model_memory(model, peak_flops=FLOP_NS, bandwidth=None)
    graph = condense(memory.graph, sums=True).graph
    size = {value.name: value.size for value in graph.values}
    regions = []
    ours = {value.name for value in graph.values if value.kind not in ("input", "constant")}
    for operator in graph.operators:
        read, written = (sum(size[one] for one in values) for values in (operator.inputs, operator.outputs))
        outputs = max(written // 4, 1)
        flops = int(operator.time)
        recent = sum(size[one] for one in operator.inputs if one in ours)
        work = Work(
            operator.name, flops, read, written, outputs, _depth(flops, outputs), recent_bytes=min(recent, read)
        )  # fmt: skip
        regions.append(Region(operator.name, candidates(device, work)))
    operators = tuple(
        replace(one, inputs=tuple(value for value in one.inputs if value in ours)) for one in graph.operators
    )
    values = tuple(value for value in graph.values if value.name in ours)
    names = {operator.name: operator.name for operator in operators}
    kinds = {operator.name: memory.nodes[operator.name].op_type for operator in operators}
    return _tasks(Graph(values, operators), regions, names, kinds, name, lowered=False)


def _depth(flops: int, outputs: int) -> int:
    """The length of the sums behind the outputs: 1 where there are none to speak of."""
    return max(1, round(flops / (2 * max(outputs, 1))))


def _tasks(
    graph: Graph, regions: list[Region], names: Mapping[str, str], kinds: Mapping[str, str], name: str, *, lowered: bool
) -> Tasks:
    maker = {value: names[operator.name] for operator in graph.operators for value in operator.outputs}
    needs: dict[tuple[str, str], Need] = {}
    for operator in graph.operators:
        target = names[operator.name]
        for value in operator.inputs:
            needs.setdefault((maker[value], target), Need(maker[value], target))
        for earlier in operator.after:
            needs.setdefault((names[earlier], target), Need(names[earlier], target, reuse=True))
    before = {share.value: share.of for share in graph.shares} if lowered else {}
    # Regions write a buffer several times, each time a value in place of the last.
    buffer: dict[str, str] = {}  # by value
    for one in graph.values:
        buffer[one.name] = buffer[before[one.name]] if one.name in before else one.name
    sizes = {buffer[value.name]: value.size for value in graph.values}
    reads, writes = (
        {
            names[operator.name]: tuple(dict.fromkeys(buffer[value] for value in values))
            for operator, values in ((one, getattr(one, side)) for one in graph.operators)
        }
        for side in ("inputs", "outputs")
    )
    kept = frozenset(buffer[value.name] for value in graph.values if value.kind == "output")
    return Tasks(TaskGraph(name, tuple(regions), tuple(needs.values())), sizes, reads, writes, kept, lowered, kinds)

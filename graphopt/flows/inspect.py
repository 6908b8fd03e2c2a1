"""What a model consists of and what a run of it costs, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx_ir as ir

from graphopt.flows.records.models import InspectRecord, ParameterLine, PortLine, TypeLine
from graphopt.model import nodes
from graphopt.model.costs import Sizes, cost_of
from graphopt.model.dimensions import name_dims
from graphopt.model.facts import Facts
from graphopt.model.functions import inline
from graphopt.model.settling import sizes_from
from graphopt.model.signature import port_of


def inspect_model(model: ir.Model, name: str, file_bytes: int, given: Mapping[str, int]) -> InspectRecord:
    """Count everything; `given` are sizes for dynamic dims, others follow from them or are taken as 1."""
    notes: list[str] = []
    work = model.clone()
    name_dims(work, given)
    dynamic = _dynamic_dims(work)
    if work.functions:
        inline(work)
        notes.append("model-local functions are counted where they are called")
    facts = Facts(work)
    given = sizes_from(work.graph, facts, dynamic, given)
    sizes = Sizes(facts, given)
    operators = _operators(work, sizes)
    if any(nodes.has_subgraphs(node) for node in work.graph):
        notes.append("the graphs inside If, Loop and Scan are counted once each")
    if sizes.unnamed:
        notes.append("dims that only a run can tell (of NonZero and the like) are taken as 1")
    if any(item.unknown for item in operators):
        notes.append("nodes of custom operators and of unknown dims are left out of flops and bytes")
    initializers = _initializers(model)
    graph = model.graph
    return InspectRecord(
        model=name,
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        ir_version=model.ir_version or 0,
        opsets={domain or "ai.onnx": version for domain, version in sorted(graph.opset_imports.items())},
        nodes=sum(len(inner) for inner in nodes.graphs_of(model)),
        bytes=file_bytes,
        parameters=sum(item.parameters for item in initializers),
        inputs=tuple(_port(value, value.name in graph.initializers) for value in graph.inputs),
        outputs=tuple(_port(value, False) for value in graph.outputs),
        dynamic_dims=dynamic,
        assumed={dim: given[dim] for dim in dynamic},
        flops=sum(item.flops for item in operators),
        moved_bytes=sum(item.bytes for item in operators),
        operators=operators,
        initializers=initializers,
        notes=tuple(notes),
    )


def count_flops(model: ir.Model) -> int:
    """The operations of one run, every dynamic dim taken as 1; nodes that cannot be counted are left out."""
    work = model.clone()
    if work.functions:
        inline(work)
    return sum(item.flops for item in _operators(work, Sizes(Facts(work), {})))


def _dynamic_dims(model: ir.Model) -> tuple[str, ...]:
    found = (dim.value for value in model.graph.inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def _operators(model: ir.Model, sizes: Sizes) -> tuple[TypeLine, ...]:
    counts: Counter[str] = Counter()
    flops: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for graph in nodes.graphs_of(model):
        for node in graph:
            kind = node.op_type if nodes.is_standard(node) else f"{node.domain}.{node.op_type}"
            counts[kind] += 1
            cost = cost_of(node, sizes)
            if cost is None:
                unknown[kind] += 1
            else:
                flops[kind] += cost.flops
                moved[kind] += cost.bytes
    ordered = sorted(counts, key=lambda kind: (-flops[kind], -moved[kind], -counts[kind], kind))
    return tuple(TypeLine(kind, counts[kind], flops[kind], moved[kind], unknown[kind]) for kind in ordered)


def _initializers(model: ir.Model) -> tuple[ParameterLine, ...]:
    tensors: Counter[str] = Counter()
    parameters: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for graph in nodes.graphs_of(model):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None:
                kind = str(tensor.dtype).lower()
                tensors[kind] += 1
                parameters[kind] += tensor.size
                held[kind] += tensor.nbytes
    ordered = sorted(tensors, key=lambda kind: (-held[kind], kind))
    return tuple(ParameterLine(kind, tensors[kind], parameters[kind], held[kind]) for kind in ordered)


def _port(value: ir.Value, default: bool) -> PortLine:
    port = port_of(value)
    return PortLine(port.name, port.type, port.dims, default)

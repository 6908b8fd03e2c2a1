"""The tables of `graphopt inspect`."""

from __future__ import annotations

from graphopt.flows.records.models import InspectRecord, PortLine
from graphopt.model.text import binary_size
from graphopt.report.screen import Screen, Table
from graphopt.report.wording import quantity

PORTS = 12  # inputs and outputs listed in the terminal


def print_inspect(screen: Screen, record: InspectRecord) -> None:
    """The tables."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in record.opsets.items())
    screen.line(record.model, "bold")
    writer = f", written by {record.producer}" if record.producer else ""
    screen.line(f"file          {binary_size(record.bytes)}, IR version {record.ir_version}, opset {opsets}{writer}")
    screen.line(f"nodes         {record.nodes:,} of {len(record.operators)} types")
    held = ", ".join(
        f"{quantity(item.parameters)} {item.type} in {item.tensors:,} {'tensor' if item.tensors == 1 else 'tensors'}"
        for item in record.initializers
    )
    screen.line(f"parameters    {quantity(record.parameters)}{f' ({held})' if held else ''}")
    screen.line(f"dynamic dims  {', '.join(record.dynamic_dims) or 'none'}")
    _print_ports(screen, "input", record.inputs)
    _print_ports(screen, "output", record.outputs)
    table = Table("operator", "nodes", "flops", "share", "bytes moved")
    for item in record.operators:
        share = f"{100 * item.flops / record.flops:.1f}%" if item.flops else ""
        known = item.unknown < item.nodes
        table.add(
            item.op_type, f"{item.nodes:,}", quantity(item.flops) if known else "?", share,
            binary_size(item.bytes) if known else "?",
        )  # fmt: skip
    total = sum(item.nodes for item in record.operators)
    table.add_total("all", f"{total:,}", quantity(record.flops), "", binary_size(record.moved_bytes))
    screen.table(table)
    if record.assumed:
        texts = ", ".join(f"{name}={number}" for name, number in record.assumed.items())
        screen.small(f"flops and bytes with {texts}; choose with --dim NAME=SIZE")
    for note in record.notes:
        screen.small(note)


def _print_ports(screen: Screen, kind: str, ports: tuple[PortLine, ...]) -> None:
    for port in ports[:PORTS]:
        shape = "?" if port.dims is None else ", ".join("?" if dim is None else str(dim) for dim in port.dims)
        default = " (has a default)" if port.default else ""
        screen.line(f"{kind:<13} {port.name}: {port.type}[{shape}]{default}")
    if len(ports) > PORTS:
        screen.line(f"{'':<13} and {len(ports) - PORTS} more {kind}s")

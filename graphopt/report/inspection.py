"""The tables of `graphopt inspect`."""

from __future__ import annotations

from rich.console import Console

from graphopt.flows.records.models import InspectRecord, PortLine
from graphopt.report.terminal import dim_line, line, new_table
from graphopt.report.wording import quantity, size

PORTS = 12  # inputs and outputs listed in the terminal


def print_inspect(console: Console, record: InspectRecord) -> None:
    """The tables."""
    opsets = ", ".join(f"{domain} {version}" for domain, version in record.opsets.items())
    line(console, record.model, "bold")
    writer = f", written by {record.producer}" if record.producer else ""
    line(console, f"file          {size(record.bytes)}, IR version {record.ir_version}, opset {opsets}{writer}")
    line(console, f"nodes         {record.nodes:,} of {len(record.operators)} types")
    held = ", ".join(
        f"{quantity(item.parameters)} {item.type} in {item.tensors:,} {'tensor' if item.tensors == 1 else 'tensors'}"
        for item in record.initializers
    )
    line(console, f"parameters    {quantity(record.parameters)}{f' ({held})' if held else ''}")
    line(console, f"dynamic dims  {', '.join(record.dynamic_dims) or 'none'}")
    _print_ports(console, "input", record.inputs)
    _print_ports(console, "output", record.outputs)
    table = new_table("operator", "nodes", "flops", "share", "bytes moved")
    for item in record.operators:
        share = f"{100 * item.flops / record.flops:.1f}%" if item.flops else ""
        known = item.unknown < item.nodes
        table.add_row(
            item.op_type, f"{item.nodes:,}", quantity(item.flops) if known else "?", share,
            size(item.bytes) if known else "?",
        )  # fmt: skip
    table.add_section()
    total = sum(item.nodes for item in record.operators)
    table.add_row("all", f"{total:,}", quantity(record.flops), "", size(record.moved_bytes))
    console.print(table)
    if record.assumed:
        texts = ", ".join(f"{name}={number}" for name, number in record.assumed.items())
        dim_line(console, f"flops and bytes with {texts}; choose with --dim NAME=SIZE")
    for note in record.notes:
        dim_line(console, note)


def _print_ports(console: Console, kind: str, ports: tuple[PortLine, ...]) -> None:
    for port in ports[:PORTS]:
        shape = "?" if port.dims is None else ", ".join("?" if dim is None else str(dim) for dim in port.dims)
        default = " (has a default)" if port.default else ""
        line(console, f"{kind:<13} {port.name}: {port.type}[{shape}]{default}")
    if len(ports) > PORTS:
        line(console, f"{'':<13} and {len(ports) - PORTS} more {kind}s")

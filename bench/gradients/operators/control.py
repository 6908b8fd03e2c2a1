"""If, Loop and Scan: their bodies run as they say, and autograd follows every iteration."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bench.gradients.node import Function, Node, Results


def _if(node: Node) -> Results:
    return node.run(node.get("then_branch" if bool(node.inputs[0]) else "else_branch"), [])


def _loop(node: Node) -> Results:
    body = node.get("body")
    trips, going = node.input(0), node.input(1)
    states: list[Tensor | None] = list(node.inputs[2:])
    collected: list[list[Tensor]] = [[] for _ in range(len(body.output) - 1 - len(states))]
    goes, trip = going is None or bool(going), 0
    while goes and (trips is None or trip < int(trips)):
        again, *found = node.run(body, [torch.tensor(trip), torch.tensor(goes), *states])
        states = list(found[: len(states)])
        for rows, row in zip(collected, found[len(states) :], strict=True):
            rows.append(row)
        goes, trip = bool(again), trip + 1
    if any(not rows for rows in collected):
        raise node.refuse("that collects and does not run")
    return [*states, *(torch.stack(rows) for rows in collected)]


def _scan(node: Node) -> Results:
    body, count = node.get("body"), node.get("num_scan_inputs")
    if node.opset < 9:
        raise node.refuse("of opset 8, which has lengths and a batch")
    states: list[Tensor | None] = list(node.inputs[: len(node.inputs) - count])
    outputs = len(body.output) - len(states)
    scanned = [
        (x.flip(axis) if back else x).movedim(axis, 0)
        for x, axis, back in zip(
            node.inputs[len(states) :], node.get("scan_input_axes", [0] * count),
            node.get("scan_input_directions", [0] * count), strict=True,
        )
    ]  # fmt: skip
    collected: list[list[Tensor]] = [[] for _ in range(outputs)]
    for rows in zip(*scanned, strict=True):
        found = node.run(body, [*states, *rows])
        states = list(found[: len(states)])
        for kept, row in zip(collected, found[len(states) :], strict=True):
            kept.append(row)
    axes, backs = node.get("scan_output_axes", [0] * outputs), node.get("scan_output_directions", [0] * outputs)
    stacked = [
        torch.stack(kept[::-1] if back else kept, axis) for kept, axis, back in zip(collected, axes, backs, strict=True)
    ]
    return [*states, *stacked]


OPERATORS: Mapping[str, Function] = {"If": _if, "Loop": _loop, "Scan": _scan}

"""Changing the layout of inputs and outputs: the new signature, with Transposes to and from what is between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class Relayout:
    """By position, how the dims of inputs and outputs are permuted: new dim i is old dim perm[i]."""

    inputs: Mapping[int, tuple[int, ...]]
    outputs: Mapping[int, tuple[int, ...]]

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)


def relayout(model: ir.Model, change: Relayout) -> None:
    """Give inputs and outputs another layout, in place.

    `x` [N, C, H, W]  -->  `x` [N, H, W, C] and a Transpose to what the graph has read so far; outputs likewise.
    Outputs that a file declares with another rank than they have are declared without dims from then on.
    """
    graph = model.graph
    names = {value.name for value in graph.inputs} | set(graph.initializers)
    names |= {output.name for node in graph for output in node.outputs}
    for position, perm in change.inputs.items():
        value = graph.inputs[position]
        readers = tuple(value.uses())
        back = _transpose(value, [perm.index(axis) for axis in range(len(perm))], _unique(f"{value.name}/old", names))
        back.outputs[0].type, back.outputs[0].shape = value.type, value.shape
        value.shape = _permuted(value.shape, perm)
        for node, index in readers:
            node.replace_input_with(index, back.outputs[0])
        first = next(iter(graph), None)
        if first is None:
            graph.append(back)
        else:
            graph.insert_before(first, back)
    for position, perm in change.outputs.items():
        old = graph.outputs[position]
        old.shape = None if old.shape is not None and len(old.shape) != len(perm) else old.shape
        name = old.name
        old.name = _unique(f"{name}/old", names)
        turned = _transpose(old, perm, name or "")
        turned.outputs[0].type, turned.outputs[0].shape = old.type, _permuted(old.shape, perm)
        turned.outputs[0].doc_string = old.doc_string
        graph.append(turned)
        graph.outputs[position] = turned.outputs[0]


def _transpose(value: ir.Value, perm: Sequence[int], name: str) -> ir.Node:
    node = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", perm)], num_outputs=1, name=f"{name}/Transpose")
    node.outputs[0].name = name
    return node


def _permuted(shape: ir.Shape | None, perm: Sequence[int]) -> ir.Shape | None:
    return None if shape is None else ir.Shape([shape[axis] for axis in perm])


def _unique(name: str, names: set[str | None]) -> str:
    while name in names:
        name += "_"
    names.add(name)
    return name

"""Operators whose kernels read and write dense tensors: gathers, scatters, running sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import int_attribute, required_input, string_attribute
from graphopt.program.regions.copies import dense
from graphopt.program.regions.scope import Scope
from kernels.kernel import Kernel
from kernels.templates import indexed
from kernels.templates.scan import CUMULATIVE_SUM, CumulativeSum


@dataclass(frozen=True, slots=True)
class Dense:
    """The kernel of a node, and what it calls the node's first inputs and its outputs."""

    kernel: Kernel
    inputs: tuple[str, ...]  # "" for one that the kernel does not read
    outputs: tuple[str, ...]


def lower_dense(scope: Scope, node: ir.Node) -> None:
    """The region of a node with such a kernel."""
    chosen = KERNELS[node.op_type](scope, node)
    named = [(at, name) for at, name in enumerate(chosen.inputs) if name]
    places = {name: dense(scope, required_input(node, at)).buffer for at, name in named}
    places |= {name: scope.result(node.outputs[at]).buffer for at, name in enumerate(chosen.outputs)}
    scope.add(chosen.kernel, places, (node,))


def require_inside(node: ir.Node, shape: Callable[[int], tuple[int, ...]]) -> None:
    """Raise NotLowered where the dims of a gather or a scatter (`shape`, by input) reach beyond its data."""
    data, indices = shape(0), shape(1)
    axis = int_attribute(node, "axis", 0) % max(len(data), 1)
    batch, width = int_attribute(node, "batch_dims", 0), indices[-1] if indices else 0
    match node.op_type:
        case "Gather":
            fits = data[axis] > 0 or 0 in indices
        case "GatherND" | "ScatterND":
            fits = indices[:batch] == data[:batch] and batch + width <= len(data)
            fits = fits and (0 not in data[batch:][:width] or 0 in indices)
        case _:
            pairs = enumerate(zip(data, indices, strict=False))
            fits = len(data) == len(indices) and all(of <= size or at == axis for at, (size, of) in pairs)
            fits = fits and (0 not in data or 0 in indices)
    if node.op_type.startswith("Scatter"):
        fits = fits and shape(2) == ((*indices[:-1], *data[width:]) if node.op_type == "ScatterND" else indices)
    if not fits:
        raise NotLowered(f"{node.op_type} '{node.name or node.outputs[0].name}' has indices beyond its data.")


def _indexed(scope: Scope, node: ir.Node) -> Dense:
    """A gather or a scatter."""
    require_inside(node, lambda at: scope.shape(required_input(node, at)))
    data, indices = (scope.shape(required_input(node, at)) for at in (0, 1))
    types = scope.dtype(required_input(node, 0)), scope.dtype(required_input(node, 1))
    axis = int_attribute(node, "axis", 0)
    reduction = string_attribute(node, "reduction", "none")
    if reduction not in ("none", "add", "mul", "min", "max"):
        raise NotLowered(f"{node.op_type} '{node.name}' combines by '{reduction}', which has no kernel.")
    match node.op_type:
        case "Gather":
            problem = indexed.gather(data, axis, indices, *types)
        case "GatherElements":
            problem = indexed.gather_elements(data, axis, indices, *types)
        case "GatherND":
            problem = indexed.gather_nd(data, indices, *types, int_attribute(node, "batch_dims", 0))
        case "ScatterElements":
            problem = indexed.scatter_elements(data, axis, indices, *types, reduction)  # type: ignore[arg-type]
        case _:
            problem = indexed.scatter_nd(data, indices, *types, reduction)  # type: ignore[arg-type]
    names = ("data", "indices", "updates") if problem.direction == "scatter" else ("data", "indices")
    if problem.direction == "scatter":
        problem = replace(problem, filler=_filler(scope.constant(required_input(node, 0))))
    if problem.filler is not None:
        names = ("", *names[1:])
    return Dense(scope.kernel(indexed.INDEXED, problem), names, ("output",))


def _filler(array: npt.NDArray[np.generic] | None) -> int | None:
    """The bits of the one number that fills a constant, where it is one that fills several elements."""
    if array is None or array.size < 2:
        return None
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}").reshape(-1)
    return int(bits[0]) if bool((bits == bits[0]).all()) else None


def _running_sums(scope: Scope, node: ir.Node) -> Dense:
    x = required_input(node, 0)
    exclusive, reverse = (bool(int_attribute(node, name, 0)) for name in ("exclusive", "reverse"))
    problem = CumulativeSum(scope.shape(x), _axis(scope, node), scope.dtype(x), exclusive, reverse)
    return Dense(scope.kernel(CUMULATIVE_SUM, problem), ("x",), ("y",))


def _axis(scope: Scope, node: ir.Node) -> int:
    """The one axis that the node works along."""
    (axis,) = scope.bound_axes(node)
    return axis


KERNELS: Mapping[str, Callable[[Scope, ir.Node], Dense]] = {
    "CumSum": _running_sums,
    "Gather": _indexed,
    "GatherElements": _indexed,
    "GatherND": _indexed,
    "ScatterElements": _indexed,
    "ScatterND": _indexed,
}

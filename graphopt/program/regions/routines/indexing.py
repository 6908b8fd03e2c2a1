"""Operators that write where indices say: ScatterElements and ScatterND of every type, Scatter.

Scatters run in the order of their indices, so that of several updates of one element without a reduction the last one
stays. Indices outside of a dim are moved inside.
"""

from __future__ import annotations

from math import prod

from graphopt.program.regions.dense import require_inside
from graphopt.program.regions.routines.stage import Defined, Definition, counted, held
from kernels.dtype import DType
from kernels.routine.writer import (
    as_type,
    both,
    either,
    integer,
    maximum,
    minimum,
)
from kernels.tensor.expression import Binary, Expression


def scatter_elements(node: Defined) -> None:
    """The data, with updates at the same places but for the index along the axis."""
    require_inside(node.node, node.shape)
    shape = node.shape(0)
    axis = node.axis(0, len(shape))
    with node.stage() as w:
        x, indices, updates = w.reads(node.input(0)), w.reads(node.input(1)), w.reads(node.input(2))
        y = w.writes(node.output(0))
        with w.shared(1):
            with w.loop(prod(shape)) as at:
                y.put(at, x.at(at))
            (size,) = node.extents(w, node.dims(0)[axis : axis + 1])
            with w.loops(*node.extents(w, node.dims(1))) as places:
                chosen = counted(indices[places], size)
                at_place = w.local(DType.I64, y.place([*places[:axis], chosen, *places[axis + 1 :]]))
                y.put(at_place, _reduced(node, y.at(at_place), updates[places]))


def scatter_nd(node: Defined) -> None:
    """The data, with slices of the updates at places that rows of the indices name."""
    require_inside(node.node, node.shape)
    shape, given = node.shape(0), node.shape(1)
    width = given[-1]
    inner = prod(shape[width:])
    with node.stage() as w:
        x, indices, updates = w.reads(node.input(0)), w.reads(node.input(1)), w.reads(node.input(2))
        y = w.writes(node.output(0))
        with w.shared(1):
            with w.loop(prod(shape)) as at:
                y.put(at, x.at(at))
            (there,) = node.extents(w, node.dims(1)[:1]) if len(given) > 1 else (integer(1),)
            sizes = (*node.extents(w, node.dims(0)[:1]), *map(integer, shape[1:width]))
            with w.loop(there * prod(given[1:-1])) as row:
                place = w.local(DType.I64, 0)
                for at_dim, size in enumerate(sizes[:width]):
                    chosen = counted(indices.at(row * width + at_dim), size)
                    w.set(place, place * shape[at_dim] + chosen)
                with w.loop(inner) as after:
                    here = place * inner + after
                    y.put(here, _reduced(node, y.at(here), updates.at(row * inner + after)))


def _reduced(node: Defined, old: Expression, new: Expression) -> Expression:
    """What becomes of an element; bool counts as a number of one bit."""
    reduction = node.text("reduction", "none")
    if reduction == "none":
        return new
    kind = held(old.dtype)
    a, b = as_type(old, kind), as_type(new, kind)
    if kind is DType.BOOL:
        return either(a, b) if reduction in ("add", "max") else both(a, b)
    match reduction:
        case "add" | "mul":
            made: Expression = Binary("add" if reduction == "add" else "mul", a, b)
        case "min" | "max":
            made = minimum(a, b) if reduction == "min" else maximum(a, b)
        case _:
            raise node.refuse(f"combines by '{reduction}', which has no kernel")
    return as_type(made, old.dtype)


DEFINITIONS: dict[str, Definition] = {
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
}

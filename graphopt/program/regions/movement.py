"""Operators that move data without computing: views where strides can say it, copies where they cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.facts import Facts
from graphopt.model.nodes import COPIED, TILED, int_attribute, required_input
from graphopt.model.operators.movement import permutation
from graphopt.model.operators.parameters import SLICE, Unclear, parameter
from graphopt.model.operators.table import RESHAPES
from graphopt.program.regions.copies import dense
from graphopt.program.regions.images.image import Image
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from graphopt.program.regions.waiting import FAR, reading


def moved(node: ir.Node, view: View, shape: tuple[int, ...], facts: Facts) -> View | None:
    """The view of a node's first result, given its first operand's and the result's shape; None where it is a copy.

    Raises NotLowered for an operator that is none of these.
    """
    kind = node.op_type
    if kind in (*RESHAPES, "Identity", "BitCast"):
        if prod(shape) != prod(view.shape):  # as in a file whose shapes contradict each other
            raise NotLowered(
                f"{kind} '{node.name or node.outputs[0].name}' makes {list(shape)} of {list(view.shape)}, which has "
                "another number of elements.", node,
            )  # fmt: skip
        return view.reshaped(shape)
    if kind == "Transpose":
        return view.transposed(permutation(node, len(view.shape)))
    if kind == "Expand":
        return view.expanded(shape)
    if kind == "Slice":
        for axis, start, step in sliced_axes(node, view.shape, facts):
            if step < 0:
                return None
            view = view.sliced(axis, start, shape[axis], step)
        return view
    raise NotLowered(f"{kind} '{node.name}' has no kernel yet.")


def sliced_axes(node: ir.Node, size: Sequence[int], facts: Facts) -> Iterator[tuple[int, int, int]]:
    """Axis, first position and step of each axis that a Slice cuts; the result's shape tells how many it leaves.

    Raises NotLowered where a run alone can tell them.
    """
    given: dict[str, tuple[int, ...] | None] = {}
    for name in ("starts", "axes", "steps"):
        try:
            given[name] = parameter(facts, node, name, SLICE[name])
        except Unclear as unclear:
            raise NotLowered(f"Slice '{node.name}' has {name} that are known only when it runs.") from unclear
    starts = given["starts"] or ()
    axes, steps = given["axes"] or range(len(starts)), given["steps"] or (1,) * len(starts)
    for axis, start, step in zip(axes, starts, steps, strict=True):
        length = size[axis % len(size)]
        yield axis % len(size), max(0, min(start + length if start < 0 else start, length)), step


def lower_movement(scope: Scope, node: ir.Node) -> None:
    """Views for the node's results, with the copies that they need."""
    if node.op_type == "Concat":
        _concat(scope, node)
        return
    if node.op_type == "Split":
        _split(scope, node)
        return
    source, output = required_input(node, 0), node.outputs[0]
    before, shape = scope.place(source), scope.shape(output)
    view = moved(node, before, shape, scope.facts)
    if view is None:  # with the elements in order, any reshape is a view
        view = moved(node, dense(scope, source), shape, scope.facts)
    if view is None:
        raise NotLowered(f"{node.op_type} '{node.name or output.name}' has no kernel yet.")
    view = replace(view, dtype=scope.dtype(output))  # BitCast reads the same bytes as another type
    if node.op_type == "Slice":
        view = _set_apart(scope, node, source, output, view)
    scope.places[output] = view
    if COPIED in node.metadata_props:
        if node.metadata_props[COPIED] == "joined":
            aim = scope.result(output, apart=True)
        else:
            aim = View.dense(scope.temporary("kept", output.name, view.dtype.bytes * prod(shape)), view.dtype, shape)
        scope.copy(view, aim, (node,))
        scope.places[output] = aim


def parts_of(scope: Scope, nodes: Iterable[ir.Node]) -> dict[ir.Value, View]:
    """Where values should be computed that a Concat alone reads, as blocks of memory one after the other.

    Where memory is tight, tiles are computed where they are joined along any axis, and so are the queries of a tile of
    attention: the block that writes a head's rows has read them by then, and no other one reads them.
    """
    found: dict[ir.Value, View] = {}
    for node in reversed(list(nodes)):
        if node.op_type != "Concat" or node.domain not in ("", "ai.onnx") or node.outputs[0] in scope.rooms:
            continue
        output, shape, start = node.outputs[0], scope.shape(node.outputs[0]), 0
        axis = int_attribute(node, "axis", 0) % max(1, len(shape))
        is_apart = bool(set(shape[:axis]) - {1})
        if is_apart and not (scope.tight and TILED in node.metadata_props):
            continue
        if 0 in shape or scope.counted(output):
            continue
        dtype, whole = scope.dtype(output), found.get(output)
        if whole is None:
            whole = View.dense(scope.result_buffer("joined", output, dtype.bytes * prod(shape)), dtype, shape)
        for value in node.inputs:
            assert value is not None, "every operand of a Concat is there"
            count = scope.shape(value)[axis]
            if len(value.uses()) == 1 and value.producer() is not None and count and not value.is_graph_output():
                found[value], found[output] = whole.sliced(axis, start, count), whole
                if scope.tight:
                    found |= _queries_of(scope, value, found[value])
            start += count
    return found


def _queries_of(scope: Scope, result: ir.Value, place: View) -> dict[ir.Value, View]:
    """The queries of the attention that computes `result` at `place`, there too, where it alone reads them."""
    node = result.producer()
    if node is None or node.op_type != "Attention" or node.domain not in ("", "ai.onnx"):
        return {}
    value = required_input(node, 0)
    if scope.shape(value) != place.shape or scope.dtype(value) is not place.dtype:
        return {}
    found = list(turned_back(scope, value, place))
    alone = all(len(one.uses()) == 1 and not one.is_graph_output() for one, _ in found)
    made, there = found[-1]
    return {made: there} if alone and made.producer() is not None else {}


def turned_back(scope: Scope, value: ir.Value, aim: View) -> Iterator[tuple[ir.Value, View]]:
    """A value that is to lie at `aim`, and what it is with other dims, of which each lies where it then is.

    The last one is computed, unless it cannot lie so.
    """
    there: View | None = aim
    while there is not None:
        yield value, there
        producer = value.producer()
        if producer is None or producer.op_type not in ("Transpose", *RESHAPES):
            return
        value = required_input(producer, 0)
        if producer.op_type == "Transpose":
            there = there.transposed(_inverse(permutation(producer, len(there.shape))))
        else:
            there = there.reshaped(scope.shape(value))


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def join_tiles(scope: Scope, node: ir.Node) -> None:
    """Copy what a node has made as images to the caller's memory, if it is joined there: then it need not wait."""
    for value in node.outputs:
        image, view = scope.images.get(value), scope.parts.get(value)
        if image is None or view is None or view.buffer.role != "output" or TILED not in node.metadata_props:
            continue
        aim = Image.of_view(view)
        if aim is not None and image.buffer != aim.buffer:
            scope.convert(image, aim, 0, (node,))
            scope.images[value], scope.places[value] = aim, view


def _concat(scope: Scope, node: ir.Node) -> None:
    output = node.outputs[0]
    axis = int_attribute(node, "axis", 0) % len(scope.shape(output))
    shapes = [scope.shape(value) for value in node.inputs if value is not None]
    if not fit_along(axis, shapes):  # as at a size at which the model does not run
        given = ", ".join(str(list(shape)) for shape in shapes)
        raise NotLowered(
            f"Concat '{node.name or output.name}' joins {given} along axis {axis}, which do not fit one another."
        )
    together = None if output in scope.parts or output.is_graph_output() else _together(scope, node, axis)
    if together is not None:
        scope.places[output] = together
        return
    whole, start = scope.result(output, apart=True), 0
    for value in node.inputs:
        assert value is not None, "every operand of a Concat is there"
        part = scope.place(value)
        if 0 not in part.shape:
            scope.copy(part, whole.sliced(axis, start, part.shape[axis]), (node,))
        start += part.shape[axis]


def fit_along(axis: int, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether values of these dims can be joined along an axis: all other dims are equal."""
    return len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) == 1


def _together(scope: Scope, node: ir.Node, axis: int) -> View | None:
    """The operands of a Concat as one view; None where one does not begin in the same buffer where the other ends.

    So it is with windows over pixels whose channels lie behind, x[:, 0:-2], x[:, 1:-1] and x[:, 2:] of [pixels,
    channels]: one row begins a pixel behind the other, and is three pixels long. What they are taken from is copied
    where its channels lie elsewhere, as that is one copy instead of three.
    """
    found = _side_by_side([scope.place(value) for value in node.inputs if value is not None], axis)
    makers = [None if value is None else value.producer() for value in node.inputs]
    slices = [one for one in makers if one is not None and one.op_type == "Slice"]
    source = slices[0].inputs[0] if slices else None
    if (
        found is not None
        or source is None
        or len(slices) < len(makers)
        or any(one.inputs[0] != source for one in slices)
    ):
        return found
    if prod(scope.shape(source)) > prod(scope.shape(node.outputs[0])):
        return None
    lying = View.dense(scope.place(source).buffer, scope.dtype(source), scope.shape(source))
    parts = [moved(one, lying, scope.shape(one.outputs[0]), scope.facts) for one in slices]
    whole = [part for part in parts if part is not None]
    joined = _side_by_side(whole, axis) if len(whole) == len(parts) else None
    return None if joined is None else replace(joined, buffer=dense(scope, source).buffer)


def _side_by_side(parts: Sequence[View], axis: int) -> View | None:
    """Views as one, where each begins where the one before it ends along an axis; None elsewhere."""
    first, count = parts[0], 0
    if 0 in first.shape or len(parts) < 2:
        return None
    if first.shape[axis] == 1:  # of one element the stride says nothing
        step = max(0, parts[1].offset - first.offset)
        strides = (*first.strides[:axis], step, *first.strides[axis + 1 :])
        parts = [replace(part, strides=strides) if part.strides == first.strides else part for part in parts]
        first = parts[0]
    for part in parts:
        begin = first.offset + count * first.strides[axis]
        if replace(part, offset=first.offset) != first or part.offset != begin:
            return None
        count += part.shape[axis]
    return replace(first, shape=(*first.shape[:axis], count, *first.shape[axis + 1 :]))


def _split(scope: Scope, node: ir.Node) -> None:
    view, start = scope.place(required_input(node, 0)), 0
    axis = int_attribute(node, "axis", 0) % len(view.shape)
    for output in node.outputs:
        count = scope.shape(output)[axis]
        part = view.sliced(axis, start, count)
        scope.places[output] = _set_apart(scope, node, required_input(node, 0), output, part)
        start += count


def is_set_apart(scope: Scope, whole: ir.Value, part: ir.Value) -> bool:
    """Whether a part is copied from what holds it: where memory is tight and parts are read at different times.

    So it is with the gradients of a skip connection and of what it is concatenated to, which are computed together. A
    part that one node reads, and first, is no copy: the others have been made by then.
    """
    if not scope.tight or 2 * prod(scope.shape(part)) > prod(scope.shape(whole)):
        return False
    others = [one for use in whole.uses() for one in use.node.outputs if one is not part and one.uses()]
    first, last = reading(part, scope.order)
    spans = [reading(one, scope.order) for one in others]
    is_later = bool(spans) and first - max(end for _, end in spans) > FAR
    return is_later or (bool(spans) and min(begin for begin, _ in spans) - last > FAR and len(part.uses()) > 1)


def _set_apart(scope: Scope, node: ir.Node, whole: ir.Value, part: ir.Value, view: View) -> View:
    """Where a part of a value lies."""
    if view.buffer.role != "temporary" or not is_set_apart(scope, whole, part):
        return view
    aim = View.dense(scope.temporary("part", part.name, view.dtype.bytes * prod(view.shape)), view.dtype, view.shape)
    scope.copy(view, aim, (node,))
    return aim

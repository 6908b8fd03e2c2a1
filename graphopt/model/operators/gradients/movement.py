"""Gradients of operators that move elements: the elements go back to where they came from."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import NoGradient, Term
from graphopt.model.operators.parameters import SLICE, Parameter

PADS_SINCE = 13  # the opset with integers in Max and Min, and pads that are an input


def reshaped(back: Backward) -> Gradients:
    """The operand's dims."""
    return (back.dy.reshape_like(back.x()),)


def transposed(back: Backward) -> Gradients:
    """The inverse order of axes."""
    rank = back.x().rank
    order = back.integers("perm") or tuple(reversed(range(rank)))
    return (back.dy.transpose(*(order.index(axis) for axis in range(rank))),)


def concatenated(back: Backward) -> Gradients:
    """To each operand its range."""
    parts = [back.x(position) for position in range(len(back.node.inputs))]
    axis = parts[0].axis(back.integer("axis", 0))
    found: list[Term | None] = []
    start = 0
    for position, part in enumerate(parts):
        size = part.shape[axis]
        if not isinstance(size, int):
            return _split(back, parts, axis)
        found.append(back.dy.slice(axis, start, start + size) if back.wants(position) else None)
        start += size
    return found


def _split(back: Backward, parts: Sequence[Term], axis: int) -> Gradients:
    """As many parts of the gradient as there are operands, of sizes that only a run knows."""
    if back.maker.opset < 13:
        raise NoGradient("the sizes of its operands are not known, which needs opset 13; fix them with --dim")
    sizes = back.maker.join([part.dim(axis) for part in parts], 0)
    return back.maker.ops("Split", back.dy, sizes, attributes={"axis": axis}, outputs=len(parts))


def split(back: Backward) -> Gradients:
    """The gradients of the parts, one after the other; zeros for a part that has none."""
    parts = [back.y(at).zeros() if dy is None else dy for at, dy in enumerate(back.incoming)]
    return (back.maker.join(parts, back.integer("axis", 0)),)


def expanded(back: Backward) -> Gradients:
    """The sum over the copies, which the reader of the gradient makes."""
    return (back.dy,)


def tiled(back: Backward) -> Gradients:
    """The sum over the copies: [r d] as [r, d]. Only a run may know their numbers, which are as many as x has dims."""
    x, rank, given = back.x(), back.x().rank, back.x(1)
    known = back.facts.ints(given.value)
    copies = [given.slice(0, at, at + 1) if known is None else back.maker.ints(known[at]) for at in range(rank)]
    sizes = [copies[axis] if place == 0 else x.dim(axis) for axis in range(rank) for place in (0, 1)]
    return (back.dy.reshape(*sizes).sum(*range(0, 2 * rank, 2), keep=False),)


def sliced(back: Backward) -> Gradients:
    """Zeros around the range; between its elements too, where it takes steps."""
    x, found = back.x(), back.dy
    starts, axes, steps = (back.parameter(one, SLICE[one], f"its {one}") for one in ("starts", "axes", "steps"))
    if starts is None:
        raise NoGradient("its range is not constant")
    axes = tuple(range(len(starts))) if axes is None else axes
    if set(steps or (1,)) == {1} and back.maker.opset >= PADS_SINCE and not _is_known(back, axes):
        return (_between(back, starts, axes),)
    ends = back.parameter("ends", SLICE["ends"], "its ends")
    if ends is None:
        raise NoGradient("its range is not constant")
    before, after = [0] * x.rank, [0] * x.rank
    for start, end, axis, step in zip(starts, ends, axes, steps or (1,) * len(axes), strict=True):
        axis, size = x.axis(axis), x.shape[x.axis(axis)]
        if not isinstance(size, int):
            raise NoGradient(f"dim {axis} of '{x.value.name}' is not known; fix it with --dim")
        kept = range(*slice(start, _end(end, size, step), step).indices(size))
        if not kept:
            return (x.zeros(),)
        if step < 0:
            kept, found = kept[::-1], _reversed(found, axis)
        if kept.step > 1:
            found = _spread(found, axis, kept.step)
        before[axis], after[axis] = kept.start, size - kept.start - len(kept) * kept.step
    return (found.pad(before, after),)


def _is_known(back: Backward, axes: Sequence[int]) -> bool:
    """Whether the ends of a Slice and the dims along its axes are numbers."""
    x = back.x()
    try:
        return back.parameter("ends", SLICE["ends"], "") is not None and all(
            isinstance(x.shape[x.axis(axis)], int) for axis in axes
        )
    except NoGradient:
        return False


def _between(back: Backward, starts: Sequence[int], axes: Sequence[int]) -> Term:
    """Zeros around a range without steps, as many as the dims of a run say."""
    x, maker = back.x(), back.maker
    before, after = [maker.ints(0)] * x.rank, [maker.ints(0)] * x.rank
    for start, axis in zip(starts, axes, strict=True):
        at, size = x.axis(axis), x.dim(axis)
        if start < 0:
            before[at] = maker.op("Max", size + maker.ints(start), maker.ints(0))
        elif start:
            before[at] = maker.op("Min", size, maker.ints(start))
        after[at] = size - before[at] - back.dy.dim(axis)
    return maker.op("Pad", back.dy, maker.join([*before, *after], 0))


def _end(end: int, size: int, step: int) -> int | None:
    """The end as Python has it: an end before the first element, for a step back, is none there."""
    return None if step < 0 and end < -size else end


def _reversed(term: Term, axis: int) -> Term:
    return term.slice(axis, -1, -(1 << 62), -1)


def _spread(term: Term, axis: int, step: int) -> Term:
    """step - 1 zeros behind each element along an axis."""
    sizes = [term.dim(at) for at in range(term.rank)]
    after = [0] * (term.rank + 1)
    after[axis + 1] = step - 1
    wide = term.unsqueeze(axis + 1).pad([0] * (term.rank + 1), after)
    sizes[axis] = sizes[axis] * term.maker.ints(step)
    return wide.reshape(*sizes)


def padded(back: Backward) -> Gradients:
    """The range that the operand has in the result; elements that other modes repeat add to where they came from.

    The number that is put around gets what the range does not.
    """
    x = back.x()
    pads = back.parameter("pads", Parameter(11, 1), "the list of pads")
    mode = back.text("mode", "constant")
    listed = back.optional(3)
    axes = tuple(range(x.rank)) if listed is None else back.facts.ints(listed.value)
    if pads is None or axes is None:
        raise NoGradient("its pads are not constant")
    before, after = [0] * x.rank, [0] * x.rank
    for axis, low, high in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        before[x.axis(axis)], after[x.axis(axis)] = low, high
    if mode == "constant":
        inside = back.dy.pad([-one for one in before], [-one for one in after])
        if not back.wants(2):
            return (inside,)
        around = back.dy - inside.pad(before, after)
        return inside, None, around.sum(*range(x.rank), keep=False).reshape_like(back.x(2))
    found = back.dy
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if low or high:
            found = _folded(found, axis, x.shape[axis], low, high, mode)
    return (found,)


def _folded(term: Term, axis: int, size: object, low: int, high: int, mode: str) -> Term:
    """The sum of what reflect, edge and wrap put around along an axis, by where it came from."""
    if not isinstance(size, int) or low < 0 or high < 0:
        raise NoGradient(f"dim {axis} of its operand is not known, or elements are taken away")
    found = term.slice(axis, low, low + size)
    places = [0] * term.rank
    for start, end, first, sign in _sources(size, low, high, mode):
        part = term.slice(axis, start, end)
        part = _reversed(part, axis) if sign < 0 else part
        length = end - start
        if sign == 0:
            part, length = part.sum(axis), 1
        before, after = list(places), list(places)
        before[axis], after[axis] = first, size - first - length
        found = found + part.pad(before, after)
    return found


def _sources(size: int, low: int, high: int, mode: str) -> list[tuple[int, int, int, int]]:
    """Ranges around the operand: begin, end, the first place they came from, 1, or -1: turned, 0: all from one."""
    behind = low + size
    if mode == "edge":
        found = [(0, low, 0, 0), (behind, behind + high, size - 1, 0)]
    elif mode == "reflect" and max(low, high) < size:
        found = [(0, low, 1, -1), (behind, behind + high, size - 1 - high, -1)]
    elif mode == "wrap" and max(low, high) <= size:
        found = [(0, low, size - low, 1), (behind, behind + high, 0, 1)]
    else:
        raise NoGradient(f"there is no rule for pads of mode '{mode}' that are wider than the operand")
    return [one for one in found if one[0] < one[1]]


def depth_to_space(back: Backward) -> Gradients:
    """SpaceToDepth; by Transpose for columns first, which that operator does not have."""
    block = back.integer("blocksize", 1)
    if back.text("mode", "DCR") == "DCR":
        return (back.maker.op("SpaceToDepth", back.dy, attributes={"blocksize": block}),)
    x = back.x()
    wide = back.dy.reshape(x.dim(0), back.dy.dim(1), x.dim(2), block, x.dim(3), block)
    return (wide.transpose(0, 1, 3, 5, 2, 4).reshape_like(x),)


def space_to_depth(back: Backward) -> Gradients:
    """DepthToSpace."""
    return (back.maker.op("DepthToSpace", back.dy, attributes={"blocksize": back.integer("blocksize", 1)}),)


def reversed_sequence(back: Backward) -> Gradients:
    """The same steps turned again."""
    attributes = {"batch_axis": back.integer("batch_axis", 1), "time_axis": back.integer("time_axis", 0)}
    return (back.maker.op("ReverseSequence", back.dy, back.x(1), attributes=attributes),)


def triangle(back: Backward) -> Gradients:
    """The same triangle of the gradient."""
    return (back.maker.op("Trilu", back.dy, back.optional(1), attributes={"upper": back.integer("upper", 1)}),)

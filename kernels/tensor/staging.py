"""Schedule primitives that move whole computations: compute_at, inline, split_accumulator.

As those in `schedule`, they give a new nest that computes the same or raise IllegalSchedule with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.tensor.dependence import accesses, exact, inner_variables, shared
from kernels.tensor.expression import Buffer, Cast, Expression, Index, Load, Number, Variable
from kernels.tensor.nest import (
    Accumulate,
    Allocate,
    Loop,
    Nest,
    Node,
    Statement,
    Store,
    edit,
    free_name,
    loop_names,
    statements,
    walk,
    with_variables,
)
from kernels.tensor.ranges import bounds, holds
from kernels.tensor.scalars import identity
from kernels.tensor.schedule import IllegalSchedule, find
from kernels.tensor.traverse import loads, rebuild, substitute, variables


@dataclass(frozen=True, slots=True)
class _Producer:
    """The outermost loop that computes a temporary, and its one store."""

    loop: Loop
    chain: tuple[Loop, ...]  # one loop per dim of more than one element, outermost first
    store: Store
    axes: tuple[Variable | None, ...]  # per dim; None where the index is the constant 0


def compute_at(nest: Nest, name: str, at: str) -> Nest:
    """A temporary computed inside a loop of its consumer, only as much of it as an iteration needs.

        for i: t[i] = A(i)
        for j: y[j] = B(t[j])      -- compute_at(t, j) -->   for j: allocate t; t = A(j); y[j] = B(t)

    The part that an iteration needs becomes a smaller temporary of the same name; dims of one element are dropped.
    """
    producer = _producer(nest, name, "compute_at")
    target = find(nest, at)
    if any(node is target for node in walk((producer.loop,))):
        raise IllegalSchedule(f"compute_at: loop '{at}' is part of the computation of '{name}' itself")
    if target.kind == "vectorized":
        raise IllegalSchedule(f"compute_at: loop '{at}' is vectorized already")
    inside = [load for one in statements(target.body) for load in loads(one.value) if load.buffer.name == name]
    everywhere = [load for one in statements(nest.body) for load in loads(one.value) if load.buffer.name == name]
    if len(inside) != len(everywhere) or not inside:
        where = "outside of" if inside else "not in"
        raise IllegalSchedule(f"'{name}' is read {where} loop '{at}': compute_at needs all its readers inside")
    if any(load.buffer != producer.store.buffer for load in inside):
        raise IllegalSchedule(f"compute_at: '{name}' is accessed through its flat positions: do it before fuse")
    inner = inner_variables(target.body)
    bases, extents = [], []
    for dim, size in enumerate(producer.store.buffer.shape):
        base, extent = _region([load.indices[dim] for load in inside], inner, name, at)
        if not holds(base, ()) or not holds(base * -1 + (size - extent), ()):
            raise IllegalSchedule(
                f"loop '{at}' reads outside of '{name}' under a condition: compute_at cannot shrink it"
            )
        bases.append(base)
        extents.append(extent)
    kept = tuple(dim for dim, extent in enumerate(extents) if extent > 1)
    smaller = Buffer(name, producer.store.buffer.dtype, tuple(extents[dim] for dim in kept))
    moved = _shrunk(producer, smaller, bases, extents, kept)

    def leaf(node: Expression) -> Expression:
        if isinstance(node, Load) and node.buffer.name == name:
            return Load(smaller, tuple(node.indices[dim] - bases[dim] for dim in kept))
        return node

    def change(node: Node) -> tuple[Node, ...]:
        if node is producer.loop or (isinstance(node, Allocate) and node.buffer.name == name):
            return ()
        if isinstance(node, Loop) and node.name == at:
            return (replace(node, body=(Allocate(smaller), *moved, *node.body)),)
        if isinstance(node, Store | Accumulate):
            value = rebuild(node.value, leaf)
            return (node,) if value is node.value else (replace(node, value=value),)
        return (node,)

    return Nest(nest.program, edit(nest.body, change))


def inline(nest: Nest, name: str) -> Nest:
    """An elementwise temporary computed where it is read, and nowhere stored.

    for i: t[i] = A(i)
    for j: y[j] = B(t[j])      -- inline(t) -->          for j: y[j] = B(A(j))
    """
    producer = _producer(nest, name, "inline")
    innermost = producer.chain[-1] if producer.chain else producer.loop
    if innermost.body != (producer.store,):
        raise IllegalSchedule(
            f"inline: '{name}' is not computed by one expression (a reduction is not): use compute_at"
        )
    known = {axis for axis in producer.axes if axis is not None}
    if not variables(producer.store.value) <= known:
        raise IllegalSchedule(f"inline: '{name}' depends on loops that its indices do not have")
    value = producer.store.value
    if value.dtype.held is not value.dtype:
        value = Cast(value.dtype, value)  # a stored value is rounded; an inlined one is to be the same

    def leaf(node: Expression) -> Expression:
        if isinstance(node, Load) and node.buffer.name == name:
            if node.buffer.shape != producer.store.buffer.shape:
                raise IllegalSchedule(f"inline: '{name}' is read through its flat positions: inline it before fuse")
            at = zip(producer.axes, node.indices, strict=True)
            return substitute(value, {axis: one for axis, one in at if axis is not None})
        return node

    def change(node: Node) -> tuple[Node, ...]:
        if node is producer.loop or (isinstance(node, Allocate) and node.buffer.name == name):
            return ()
        if isinstance(node, Store | Accumulate):
            new = rebuild(node.value, leaf)
            return (node,) if new is node.value else (replace(node, value=new),)
        return (node,)

    return Nest(nest.program, edit(nest.body, change))


def split_accumulator(nest: Nest, name: str, *, reassociate: bool = False) -> Nest:
    """One accumulator per iteration of an inner loop, combined at the end: what lets the loop be vectorized well.

        acc = 0                           allocate acc.lanes[8]; for l in 0..8 vectorized: acc.lanes[l] = 0
        for k: for l in 0..8: acc += B    -- (l) -->
                                          for k: for l in 0..8: acc.lanes[l] += B
                                          for l' in 0..8 vectorized: acc += acc.lanes[l']

    It does so for every accumulation in the loop into a temporary without dims, and needs one at least.
    (Halide and TVM call this rfactor.)
    """
    loop = find(nest, name)
    steps = [node for node in loop.body if isinstance(node, Accumulate) and not node.buffer.shape]
    for step in steps:
        touching = [access for access in accesses(loop.body) if access.name == step.buffer.name]
        if len(touching) != 1:
            raise IllegalSchedule(f"split_accumulator: loop '{name}' also uses '{step.buffer.name}' otherwise")
        if not reassociate and not exact(step.op, step.buffer.dtype):
            raise IllegalSchedule(f"'{step.buffer.name}' would be rounded otherwise: allow it (reassociate)")
    if not steps:
        raise IllegalSchedule(f"split_accumulator: loop '{name}' holds no accumulation into one element")
    for node in walk(nest.body):
        if isinstance(node, Loop) and node.kind == "vectorized" and name in loop_names(node.body):
            raise IllegalSchedule(f"split_accumulator: loop '{name}' stands inside the vectorized loop '{node.name}'")
    for step in steps:
        nest = _accumulator_split(nest, name, step)
    return nest


def _accumulator_split(nest: Nest, name: str, step: Accumulate) -> Nest:
    loop = find(nest, name)
    extent = loop.variable.extent
    buffers = {node.buffer.name for node in walk(nest.body) if isinstance(node, Allocate)}
    lanes = Buffer(free_name(f"{step.buffer.name}.lanes", buffers), step.buffer.dtype, (extent,))
    taken = loop_names(nest.body)
    first = Variable(free_name(f"{name}.start", taken), extent)
    last = Variable(free_name(f"{name}.end", taken), extent)
    start = Store(lanes, (first + 0,), Number(identity(step.op, step.buffer.dtype), step.buffer.dtype))
    end = Accumulate(step.buffer, (), step.op, lanes[last])
    into = Accumulate(lanes, (loop.variable + 0,), step.op, step.value)
    inner = replace(loop, body=tuple(into if node is step else node for node in loop.body))

    def place(body: tuple[Node, ...], *, owned: bool) -> tuple[Node, ...]:
        made: list[Node] = []
        for node in body:
            owned = owned or (isinstance(node, Allocate) and node.buffer == step.buffer)
            if not isinstance(node, Loop) or (node.name != name and name not in loop_names(node.body)):
                made.append(node)
            elif owned:  # the outermost loop around the accumulation that stands where the accumulator is allocated
                changed = edit((node,), lambda one: (inner,) if isinstance(one, Loop) and one.name == name else (one,))
                made += [Allocate(lanes), Loop(first, (start,), "vectorized"), *changed]
                made.append(Loop(last, (end,), "vectorized"))
            else:
                made.append(replace(node, body=place(node.body, owned=False)))
        return tuple(made)

    return Nest(nest.program, place(nest.body, owned=False))


def _producer(nest: Nest, name: str, what: str) -> _Producer:
    if not any(isinstance(node, Allocate) and node.buffer.name == name for node in nest.body):
        raise IllegalSchedule(f"{what}: '{name}' is no temporary of the whole nest")
    writers: list[tuple[Node, Statement]] = [
        (node, one) for node in nest.body for one in statements((node,)) if one.buffer.name == name
    ]
    if len(writers) != 1 or not isinstance(writers[0][1], Store):
        raise IllegalSchedule(f"{what}: '{name}' is written in {len(writers)} places; it needs to be one")
    loop, store = writers[0]
    assert isinstance(store, Store)
    if not isinstance(loop, Loop):
        raise IllegalSchedule(f"{what}: '{name}' has no loop: it is one element")
    axes: list[Variable | None] = []
    for one in store.indices:
        if one == Index(()):
            axes.append(None)
        elif one.offset == 0 and len(one.terms) == 1 and one.terms[0][1] == 1 and one.terms[0][0] not in axes:
            axes.append(one.terms[0][0])
        else:
            raise IllegalSchedule(
                f"{what}: '{name}' is not written at plain loop variables: do it before split or fuse"
            )
    chain: list[Loop] = []
    current: Node = loop
    while isinstance(current, Loop) and current.variable in axes:
        if current.kind != "serial":
            raise IllegalSchedule(f"{what}: loop '{current.name}' of '{name}' is {current.kind} already")
        chain.append(current)
        current = current.body[0]
        if len(chain[-1].body) != 1:
            break
    others = sorted(set(shared((loop,))) - {name})
    if others:
        raise IllegalSchedule(f"{what}: the loops of '{name}' also compute {', '.join(others)}")
    if {one.variable for one in chain} != {axis for axis in axes if axis is not None}:
        raise IllegalSchedule(f"{what}: the loops of '{name}' are not perfectly nested around its computation")
    return _Producer(loop, tuple(chain), store, tuple(axes))


def _region(indices: list[Index], inner: frozenset[Variable], name: str, at: str) -> tuple[Index, int]:
    """From where, and how many elements of a dim an iteration reads."""
    outers = {tuple((v, f) for v, f in one.terms if v not in inner) for one in indices}
    if len(outers) != 1:
        raise IllegalSchedule(f"loop '{at}' reads '{name}' at places whose distance is not constant")
    ranges = [bounds(one, inner) for one in indices]
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    return Index(outers.pop(), low), high - low + 1


def _shrunk(
    producer: _Producer, smaller: Buffer, bases: list[Index], extents: list[int], kept: tuple[int, ...]
) -> tuple[Node, ...]:
    """The producer's loops over the region only."""
    by: dict[Variable, Index] = {}
    loops: dict[Variable, Variable] = {}
    place: list[Index] = []
    for dim, axis in enumerate(producer.axes):
        if axis is None:
            continue
        if dim in kept:
            loops[axis] = Variable(axis.name, extents[dim])
            by[axis] = bases[dim] + loops[axis]
            place.append(loops[axis] + 0)
        else:
            by[axis] = bases[dim]
    store = producer.store

    def retarget(node: Node) -> tuple[Node, ...]:
        return (replace(node, buffer=smaller, indices=()),) if node == store else (node,)

    body = with_variables(edit(producer.chain[-1].body if producer.chain else (), retarget), by)

    def put(node: Node) -> tuple[Node, ...]:
        same = isinstance(node, Store) and node.buffer == smaller
        return (replace(node, indices=tuple(place)),) if isinstance(node, Store) and same else (node,)

    body = edit(body, put)
    for loop in reversed(producer.chain):
        if loop.variable in loops:
            body = (Loop(loops[loop.variable], body),)
    return body

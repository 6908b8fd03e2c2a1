"""Schedule primitives on loops: split, reorder, tile, fuse, merge, vectorize, unroll, parallel.

Each takes a nest and names of its loops and gives a new nest that computes the same; a use that would compute something
else, or that cannot be shown not to, raises IllegalSchedule with the reason. `staging` has the primitives that move
whole computations. Sums and products of floats are only put in another order where `reassociate` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernels.errors import KernelsError
from kernels.tensor.dependence import accesses, inner_variables, order_free, shared, told_apart
from kernels.tensor.expression import Buffer, Expression, Index, Load, Position, Variable, index
from kernels.tensor.nest import (
    Accumulate,
    Allocate,
    Loop,
    LoopKind,
    Nest,
    Node,
    Store,
    allocated,
    edit,
    free_name,
    loop_names,
    walk,
    with_buffers,
    with_variables,
)
from kernels.tensor.ranges import never_equal
from kernels.tensor.show import show_index
from kernels.tensor.storage import extent
from kernels.tensor.traverse import rebuild

UNROLL_LIMIT = 64  # copies of a body


class IllegalSchedule(KernelsError):
    """A primitive that would change the result, or that does not fit the nest."""


def find(nest: Nest, name: str) -> Loop:
    """The loop of a name; raises IllegalSchedule where there is none."""
    for node in walk(nest.body):
        if isinstance(node, Loop) and node.name == name:
            return node
    known = ", ".join(sorted(loop_names(nest.body)))
    raise IllegalSchedule(f"there is no loop '{name}'; the nest has {known or 'none'}")


def split(nest: Nest, name: str, factor: int) -> Nest:
    """One loop into two, and a tail where the factor does not divide the extent. No iteration has a condition.

        for i in 0..10: B(i)   -- split(i, 4) -->   for i.outer in 0..2: for i.inner in 0..4: B(4*i.outer + i.inner)
                                                    for i.tail in 0..2: B(8 + i.tail)

    Loops and temporaries inside the tail are copies; their names end in ".last".
    """
    loop = _serial(nest, name, "split")
    if not 0 < factor <= loop.variable.extent:
        raise IllegalSchedule(
            f"loop '{name}' of {loop.variable.extent} iterations is not split by {factor}: "
            f"the factor is from 1 to {max(loop.variable.extent, 1)}"
        )
    taken = loop_names(nest.body)
    count, rest = divmod(loop.variable.extent, factor)
    outer = Variable(free_name(f"{name}.outer", taken), count)
    inner = Variable(free_name(f"{name}.inner", taken), factor)
    main = with_variables(loop.body, {loop.variable: outer * factor + inner})
    made: list[Node] = [Loop(outer, (Loop(inner, main),))]
    if rest:
        tail = Variable(free_name(f"{name}.tail", taken), rest)
        copy = _copied(loop.body, ".last", taken | {tail.name}, _buffer_names(nest))
        made.append(Loop(tail, with_variables(copy, {loop.variable: tail + count * factor})))
    return _replaced(nest, name, lambda _: tuple(made))


def reorder(nest: Nest, names: Sequence[str], *, reassociate: bool = False) -> Nest:
    """Perfectly nested loops in the given order, outermost first.

    for i: for j: B   -- reorder(j, i) -->   for j: for i: B
    """
    chain = _chain(nest, names, "reorder")
    if any(loop.kind == "parallel" for loop in chain) or any(loop.kind == "vectorized" for loop in chain):
        raise IllegalSchedule("loops are reordered before they are made parallel or vectorized")
    band = tuple(loop.variable for loop in chain)
    body = chain[-1].body
    new = tuple(next(v for v in band if v.name == name) for name in names)
    inner = inner_variables(body)
    for buffer, touched in shared(body).items():
        apart = told_apart([access.position for access in touched], band, inner)
        before, after = ([v for v in order if v not in apart] for order in (band, new))
        if before != after and not order_free(touched, reassociate):
            raise IllegalSchedule(
                f"'{buffer}' is touched by several iterations of {', '.join(v.name for v in before)}, whose order "
                f"would change" + _way_out(touched[0].how)
            )
    made = body
    for variable in reversed(new):
        kind = next(loop.kind for loop in chain if loop.variable == variable)
        made = (Loop(variable, made, kind),)
    return _replaced(nest, chain[0].name, lambda _: made)


def tile(nest: Nest, row: str, column: str, rows: int, columns: int, *, reassociate: bool = False) -> Nest:
    """Two perfectly nested loops into tiles of rows x columns; what remains at the edges stays in tail loops.

    for i: for j: B   -->   for i.outer: for j.outer: for i.inner: for j.inner: B
    """
    _chain(nest, (row, column), "tile")
    nest = split(nest, row, rows)
    nest = reorder(nest, (f"{row}.outer", column, f"{row}.inner"), reassociate=reassociate)
    nest = split(nest, column, columns)
    return reorder(nest, (f"{row}.inner", f"{column}.inner"), reassociate=reassociate)


def drop_unit_loops(nest: Nest) -> Nest:
    """Loops of one iteration become their bodies: for i in 0..1: B(i)   -->   B(0)."""

    def change(node: Node) -> tuple[Node, ...]:
        if isinstance(node, Loop) and node.variable.extent == 1:
            return with_variables(node.body, {node.variable: Index(())})
        return (node,)

    return Nest(nest.program, edit(nest.body, change))


def fuse(nest: Nest, outer: str, inner: str) -> Nest:
    """Two perfectly nested loops into one over both.

        for i in 0..4: for j in 0..8: y[i, j] = ...   -->   for i*j in 0..32: y.flat[i*j] = ...

    Every access must step through its storage as one loop would: by n elements for i where j steps by one of n.
    """
    first, second = _chain(nest, (outer, inner), "fuse")
    if first.kind != "serial" or second.kind != "serial":
        raise IllegalSchedule("loops are fused before they are made parallel, vectorized or unrolled")
    both = Variable(
        free_name(f"{outer}*{inner}", loop_names(nest.body)), first.variable.extent * second.variable.extent
    )

    def merged(one: Index, what: str) -> Index:
        high, low = one.factor(first.variable), one.factor(second.variable)
        if high != low * second.variable.extent:
            raise IllegalSchedule(
                f"loops '{outer}' and '{inner}' are not fused: {what} steps by {high} and {low}, "
                f"where one loop needs {low * second.variable.extent} and {low}"
            )
        return one + second.variable * -low + first.variable * -high + both * low

    def place(buffer: Buffer, indices: tuple[Index, ...]) -> tuple[Buffer, tuple[Index, ...]]:
        if not any(one.factor(v) for one in indices for v in (first.variable, second.variable)):
            return buffer, indices
        if len(indices) == 1:
            one = merged(indices[0], f"'{buffer.name}[{show_index(indices[0])}]'")
            return buffer, (one,)
        return flat(buffer), (merged(buffer.position(indices), f"'{buffer.name}'"),)

    def leaf(node: Expression) -> Expression:
        if isinstance(node, Load):
            buffer, indices = place(node.buffer, node.indices)
            return node if indices == node.indices else Load(buffer, indices)
        if isinstance(node, Position):
            return Position(merged(node.index, f"the value {show_index(node.index)}"))
        return node

    def change(node: Node) -> tuple[Node, ...]:
        if isinstance(node, Store | Accumulate):
            buffer, indices = place(node.buffer, node.indices)
            return (replace(node, buffer=buffer, indices=indices, value=rebuild(node.value, leaf)),)
        return (node,)

    body = edit(second.body, change)
    return _replaced(nest, outer, lambda _: (Loop(both, body),))


def flat(buffer: Buffer) -> Buffer:
    """The buffer's storage as one dim, under the same name."""
    return Buffer(buffer.name, buffer.dtype, (extent(buffer),))


def merge(nest: Nest, first: str, second: str) -> Nest:
    """Two loops of one body and one extent into one; what stands between them moves before it.

    for i: A(i)
    s = C                      s = C
    for j: B(j)      -->       for i: A(i); B(i)
    """
    one, other = find(nest, first), find(nest, second)
    if one.variable.extent != other.variable.extent or one.kind != other.kind:
        raise IllegalSchedule(f"loops '{first}' and '{second}' differ in extent or kind")
    moved = with_variables(other.body, {other.variable: index(one.variable)})
    body = one.body + moved
    inner = inner_variables(body)
    for name in sorted(_conflicts(one.body, moved)):
        positions = [access.position for access in accesses(body) if access.name == name]
        if not told_apart(positions, (one.variable,), inner):
            raise IllegalSchedule(
                f"loops '{first}' and '{second}' are not merged: an iteration of one touches elements of '{name}' "
                f"that another iteration of the other touches"
            )

    def join(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        at = {node.name: place for place, node in enumerate(nodes) if isinstance(node, Loop)}
        if first not in at or at.get(second, -1) <= at[first]:
            raise IllegalSchedule(f"loop '{second}' does not stand after loop '{first}' in the same body")
        between = nodes[at[first] + 1 : at[second]]
        conflicts = sorted(_conflicts((one,), between))
        if conflicts:
            raise IllegalSchedule(
                f"loops '{first}' and '{second}' are not merged: '{conflicts[0]}' is touched between them"
            )
        made = replace(one, body=body)
        return (*nodes[: at[first]], *between, made, *nodes[at[second] + 1 :])

    def inside(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        if any(node is one for node in nodes):
            return join(nodes)
        return tuple(
            replace(node, body=inside(node.body)) if isinstance(node, Loop) and _holds(node, first) else node
            for node in nodes
        )

    return Nest(nest.program, inside(nest.body))


def _conflicts(one: tuple[Node, ...], other: tuple[Node, ...]) -> set[str]:
    """The buffers that both touch and that one of them writes to."""
    touched = [{access.name for access in accesses(body)} for body in (one, other)]
    writes = {access.name for body in (one, other) for access in accesses(body) if access.how != "load"}
    return touched[0] & touched[1] & writes


def vectorize(nest: Nest, name: str, *, reassociate: bool = False) -> Nest:
    """All iterations of a loop at once, in the lanes of vectors (as many vectors as the extent needs).

    An accumulation into one element becomes a sum over the lanes, and needs `reassociate` where that rounds otherwise.
    """
    loop = _serial(nest, name, "vectorize")
    for node in walk(loop.body):
        if isinstance(node, Loop) and node.kind in ("vectorized", "parallel"):
            raise IllegalSchedule(f"loop '{name}' holds the {node.kind} loop '{node.name}'")
        if isinstance(node, Allocate) and node.buffer.shape:
            raise IllegalSchedule(
                f"loop '{name}' allocates '{node.buffer.name}' with dims: every lane would need its own"
            )
    for node in walk(nest.body):
        if isinstance(node, Loop) and node.kind == "vectorized" and _holds(node, name):
            raise IllegalSchedule(f"loop '{name}' stands inside the vectorized loop '{node.name}'")
    inner = inner_variables(loop.body)
    for buffer, touched in shared(loop.body).items():
        positions = [access.position for access in touched]
        if not told_apart(positions, (loop.variable,), inner) and not order_free(touched, reassociate):
            raise IllegalSchedule(
                f"iterations of '{name}' touch the same elements of '{buffer}'" + _way_out(touched[0].how)
            )
    return _with_kind(nest, name, "vectorized")


def unroll(nest: Nest, name: str) -> Nest:
    """The body written once per iteration, in order."""
    loop = _serial(nest, name, "unroll")
    if loop.variable.extent > UNROLL_LIMIT:
        raise IllegalSchedule(
            f"loop '{name}' has {loop.variable.extent} iterations, more than {UNROLL_LIMIT}: split it first"
        )
    return _with_kind(nest, name, "unrolled")


def parallel(nest: Nest, name: str, chunk: int = 1) -> Nest:
    """The iterations of an outermost loop as blocks. Loops around it, if any, are parallel and hold nothing else.

    A block runs `chunk` iterations; of nested parallel loops, the outermost one says how many.
    """
    if chunk < 1:
        raise IllegalSchedule(f"a block of {chunk} iterations: at least 1 is needed")
    loop = _serial(nest, name, "parallel")
    top = _outermost(nest, name)
    inner = inner_variables(loop.body)
    temporaries = {node.buffer.name for node in nest.body if isinstance(node, Allocate)}
    for access in accesses(loop.body):
        if access.name in temporaries:
            raise IllegalSchedule(
                f"blocks of '{name}' would share the temporary '{access.name}': compute it inside the loop first"
            )
    for buffer, touched in shared(loop.body).items():
        if not told_apart([access.position for access in touched], (loop.variable,), inner):
            raise IllegalSchedule(f"iterations of '{name}' touch the same elements of '{buffer}'")
    _check_siblings(nest, top, name)
    return _replaced(nest, name, lambda one: (replace(one, kind="parallel", chunk=chunk),))


def _outermost(nest: Nest, name: str) -> Loop:
    """The loop of the nest that is the named one, or holds it in parallel loops only."""
    top = next(node for node in nest.body if isinstance(node, Loop) and (node.name == name or _holds(node, name)))
    loop: Loop = top
    while loop.name != name:
        if loop.kind != "parallel" or len(loop.body) != 1 or not isinstance(loop.body[0], Loop):
            raise IllegalSchedule(
                f"loop '{name}' stands inside loop '{loop.name}', which is not parallel around it alone"
            )
        loop = loop.body[0]
    return top


def _check_siblings(nest: Nest, top: Loop, name: str) -> None:
    mine = accesses((top,))
    for node in nest.body:
        if node is top or isinstance(node, Allocate):
            continue
        for access in accesses((node,)):
            others = [a for a in mine if a.name == access.name and (access.how != "load" or a.how != "load")]
            if any(not never_equal(access.position, other.position) for other in others):
                raise IllegalSchedule(
                    f"loop '{name}' and another part of the nest share elements of '{access.name}': blocks do not wait "
                    f"for each other; compute it inside the loop, or merge the loops"
                )


def _holds(loop: Loop, name: str) -> bool:
    return name in loop_names(loop.body)


def _serial(nest: Nest, name: str, what: str) -> Loop:
    loop = find(nest, name)
    if loop.kind != "serial":
        raise IllegalSchedule(f"{what}: loop '{name}' is {loop.kind} already")
    return loop


def _chain(nest: Nest, names: Sequence[str], what: str) -> tuple[Loop, ...]:
    """The loops of the names as they are nested, outermost first."""
    loops = [find(nest, name) for name in names]
    if len(set(names)) != len(names):
        raise IllegalSchedule(f"{what}: a loop is named twice")
    outermost = next((loop for loop in loops if all(o is loop or _holds(loop, o.name) for o in loops)), None)
    if outermost is None:
        raise IllegalSchedule(f"{what}: the loops {', '.join(names)} are not nested in one another")
    found = [outermost]
    while len(found) < len(names):
        body = found[-1].body
        if len(body) != 1 or not isinstance(body[0], Loop) or body[0].name not in names:
            raise IllegalSchedule(f"{what}: loop '{found[-1].name}' holds more than the next of {', '.join(names)}")
        found.append(body[0])
    return tuple(found)


def _way_out(how: str) -> str:
    if how in ("sum", "prod"):
        return ": allow the sum to be rounded otherwise (reassociate)"
    return ""


def _with_kind(nest: Nest, name: str, kind: LoopKind) -> Nest:
    return _replaced(nest, name, lambda loop: (replace(loop, kind=kind),))


def _replaced(nest: Nest, name: str, make: Callable[[Loop], tuple[Node, ...]]) -> Nest:
    def change(node: Node) -> tuple[Node, ...]:
        return make(node) if isinstance(node, Loop) and node.name == name else (node,)

    return Nest(nest.program, edit(nest.body, change))


def _buffer_names(nest: Nest) -> set[str]:
    program = nest.program
    return {buffer.name for buffer in (*program.inputs, *program.outputs)} | allocated(nest.body)


def _copied(body: tuple[Node, ...], ending: str, loops: set[str], buffers: set[str]) -> tuple[Node, ...]:
    """The body with new names for its loops and temporaries."""
    taken_loops, taken = set(loops), set(buffers)
    renamed: dict[Variable, Variable] = {}
    storages: dict[str, Buffer] = {}
    for node in walk(body):
        if isinstance(node, Loop):
            renamed[node.variable] = Variable(free_name(node.name + ending, taken_loops), node.variable.extent)
            taken_loops.add(renamed[node.variable].name)
        elif isinstance(node, Allocate):
            new = replace(node.buffer, name=free_name(node.buffer.name + ending, taken))
            storages[node.buffer.name] = new
            taken.add(new.name)

    def rename(node: Node) -> tuple[Node, ...]:
        return (replace(node, variable=renamed[node.variable]),) if isinstance(node, Loop) else (node,)

    moved = with_variables(body, {old: index(new) for old, new in renamed.items()})
    return with_buffers(edit(moved, rename), storages)

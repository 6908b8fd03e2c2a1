"""A graph to regions: trees of nodes become kernels, movement becomes views, in the order of the graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.model.nodes import describe
from graphopt.model.operators.table import MOVEMENTS
from graphopt.model.short import stored_bytes
from graphopt.model.tensors import tensors_of
from graphopt.program.regions.attention import lower_attention
from graphopt.program.regions.bits import lower_bits
from graphopt.program.regions.bytes import lower_bytes
from graphopt.program.regions.control import lower_if, lower_loop, lower_scan
from graphopt.program.regions.copies import store
from graphopt.program.regions.counted import definition_by_counts, give
from graphopt.program.regions.dense import KERNELS, lower_dense
from graphopt.program.regions.einsum import lower_einsum
from graphopt.program.regions.fusion import Tree, is_anchor, is_elementwise, trees
from graphopt.program.regions.given_bytes import GIVEN_BYTES, lower_given_bytes
from graphopt.program.regions.images.batch_norm import without_batch_norm
from graphopt.program.regions.images.borders import (
    lower_pad,
    lower_slice,
    lower_split,
    slices_images,
    splits_images,
)
from graphopt.program.regions.images.joining import channels_of_parts, homes_of, joins_images, lower_joining
from graphopt.program.regions.images.operators import lower_images
from graphopt.program.regions.images.pointwise import lower_pointwise
from graphopt.program.regions.kernels import Kernels
from graphopt.program.regions.movement import join_tiles, lower_movement, parts_of
from graphopt.program.regions.precision import FLOAT32, Precision
from graphopt.program.regions.products import lower_product
from graphopt.program.regions.reader import Reader
from graphopt.program.regions.recurrent import CELLS, lower_recurrent
from graphopt.program.regions.region import NO_CACHES, Cache, Lowered
from graphopt.program.regions.rotary import lower_rotary
from graphopt.program.regions.routines.stage import Definition
from graphopt.program.regions.routines.table import definition_of, lower_defined
from graphopt.program.regions.rows import lower_rows
from graphopt.program.regions.scope import LowerBody, Scope, Written
from graphopt.program.regions.view import View, axes_of
from graphopt.program.regions.wide import kept_wide
from kernels.errors import KernelsError
from kernels.listing import Argument
from kernels.target import Target
from kernels.tensor.expression import index

ByCounts = Mapping[ir.Node, Definition]  # for nodes whose kernel does not do for what data decides


def lower(
    model: ir.Model, target: Target, *, exact: bool = False, precision: Precision = FLOAT32, tight: bool = False,
    steady: bool = False,
    caches: Mapping[str, Cache] = NO_CACHES, kernels: Kernels | None = None, written: Written | None = None,
) -> Lowered:  # fmt: skip
    """The main graph as regions, all dims being numbers; `exact` leaves out convolutions that round more than sums do.

    `precision` says what may be rounded to a narrower type; bodies stay as they are.

    Where memory is `tight`, results may lie less well where that saves some. `steady`: regions are the same for all
    sizes, as those that become one program of a range are. `caches` are outputs by name that lie in
    the memory of an input. `kernels` are those of other models for this target: they are taken where problems are
    equal, and those that are built join them. `written` hears of each kernel of the main graph when it is built.

    Kernels are chosen for the cache in which the program's weights lie, and once more where packed ones outgrow it.

    Raises NotLowered naming the node that has no kernel.
    """

    def known(constants: int) -> Lowered:
        there = replace(target, constants=constants)

        def inner(body: ir.Model, prefix: str) -> Lowered:
            return _lowered(body, there, inner, exact, FLOAT32, False, steady, prefix, NO_CACHES, None, None)

        return _lowered(model, there, inner, exact, precision, tight, steady, "", caches, kernels, written)

    lowered = known(sum(map(stored_bytes, tensors_of(model))))
    packed = sum(buffer.size for buffer in lowered.constants)
    return lowered if target.memory_level(packed) == lowered.target.constant_level else known(packed)


def _lowered(
    model: ir.Model, target: Target, inner: LowerBody, exact: bool, precision: Precision, tight: bool,
    steady: bool, prefix: str, caches: Mapping[str, Cache], kernels: Kernels | None, written: Written | None,
) -> Lowered:  # fmt: skip
    model = kept_wide(without_batch_norm(model))
    graph = model.graph
    scope = Scope(
        model, target, inner, exact=exact, precision=precision, tight=tight, steady=steady, prefix=prefix,
        kernels=kernels, written=written,
    )  # fmt: skip
    scope.rooms = {value: caches[value.name].room for value in graph.outputs if value.name and value.name in caches}
    kept = {caches[value.name or ""].past: value for value in scope.rooms}
    inputs = []
    for value in graph.inputs:
        if scope.constant(value) is not None:
            continue  # an old initializer that is listed as an input
        present = kept.get(value.name or "")
        room = () if present is None else scope.rooms[present]
        argument = Argument(value.name or "", scope.dtype(value), scope.shape(value), room=room)
        inputs.append(argument)
        if present is not None:  # its rows are the first ones of the result, which lies in the same memory
            view = scope.given(present)
            scope.places[value] = replace(view, shape=argument.shape)
            continue
        buffer = scope.buffer("input", "input", value.name, argument.bytes, len(inputs) - 1)
        scope.places[value] = View.dense(buffer, argument.dtype, argument.shape)
    computed = [node for node in graph if not _is_constant(scope, node)]
    by_counts: dict[ir.Node, Definition] = {}
    for node in computed if scope.counts else ():
        with _naming((node,)):
            definition = definition_by_counts(scope, node)
            by_counts |= {} if definition is None else {node: definition}
    scope.homes, scope.later_homes = homes_of(scope, computed)
    scope.parts = parts_of(scope, computed) | channels_of_parts(scope, computed)
    by_root: dict[ir.Node, list[Tree]] = {}
    for tree in trees(computed, scope.shape):
        if tree.root is not None:
            by_root.setdefault(tree.root, []).append(tree)
    for node in computed:
        if node in by_root:
            for tree in by_root[node]:
                with _naming(tree.in_order if tree.anchor is None else (tree.anchor,)):
                    _lower_tree(scope, tree, by_counts)
        elif not (is_elementwise(node) or is_anchor(node)):
            with _naming((node,)):
                _lower_alone(scope, node, by_counts)
        if scope.tight:
            join_tiles(scope, node)
    outputs: list[Argument] = []
    names = [one.name for one in inputs]
    for value in graph.outputs:
        shape, dtype, counted = scope.shape(value), scope.dtype(value), scope.counted(value)
        if counted:
            give(scope, value, len(graph.outputs) + sum(bool(one.counted) for one in outputs))
        room = scope.rooms.get(value, ())
        cache = names.index(caches[value.name or ""].past) if room else -1
        outputs.append(Argument(value.name or "", dtype, shape, counted=counted, room=room, cache=cache))
        here, aim = scope.place(value), scope.given(value)
        if here != aim and not counted:
            scope.copy(here, aim, ())
    return Lowered(
        tuple(inputs), tuple(outputs), tuple(scope.regions), scope.constants, scope.problems, target,
        controls=scope.controls, rounding=scope.rounding,
    )  # fmt: skip


def has_lowering(node: ir.Node) -> bool:
    """Whether the operator has kernels at all; `lower` may still refuse the node for its dims or attributes."""
    known = node.domain in ("", "ai.onnx") and (node.op_type in ALONE or node.op_type == "BatchNormalization")
    return known or is_elementwise(node) or is_anchor(node) or definition_of(node) is not None


@contextlib.contextmanager
def _naming(nodes: tuple[ir.Node, ...]) -> Iterator[None]:
    """Let a refusal carry the nodes that it is about; what a template refuses is a refusal too."""
    try:
        yield
    except NotLowered as error:
        error.nodes = error.nodes or nodes
        raise
    except KernelsError as error:
        raise NotLowered(f"{', '.join(map(describe, nodes))} has no kernel: {error}", *nodes) from error


def _is_constant(scope: Scope, node: ir.Node) -> bool:
    return all(scope.constant(output) is not None for output in node.outputs)


def _lower_tree(scope: Scope, tree: Tree, by_counts: ByCounts) -> None:
    """A tree by its template; where that refuses it the anchor alone, by its template or as plain loops."""
    anchor = tree.anchor
    if anchor is None:
        _lower_by_template(scope, tree)
        return
    alone = Tree(anchor, frozenset(), anchor)
    definition = by_counts.get(anchor, definition_of(anchor))
    ways: list[tuple[Tree, Callable[[], None]]] = []
    if anchor not in by_counts:
        ways += [(one, partial(_lower_by_template, scope, one)) for one in dict.fromkeys((tree, alone))]
        if anchor.op_type in GIVEN_BYTES:
            ways.append((alone, partial(lower_given_bytes, scope, anchor)))
    if definition is not None:
        ways.append((alone, partial(lower_defined, scope, anchor, definition)))
    done = _first_that_does(ways)
    if done.root is not tree.root:
        _lower_elementwise(scope, Tree(tree.root, tree.nodes, None))


def _first_that_does(ways: Sequence[tuple[Tree, Callable[[], None]]]) -> Tree:
    """What is lowered by the first of some ways that does not refuse; raises what the last one raises."""
    for one, way in ways[:-1]:
        with contextlib.suppress(NotLowered, KernelsError):
            way()
            return one
    one, way = ways[-1]
    way()
    return one


def _lower_by_template(scope: Scope, tree: Tree) -> None:
    if tree.anchor is None:
        _lower_elementwise(scope, tree)
    elif tree.anchor.op_type in ("MatMul", "Gemm"):
        lower_product(scope, tree)
    elif not (lower_bytes(scope, tree) or lower_images(scope, tree)):
        lower_rows(scope, tree)


def _lower_elementwise(scope: Scope, tree: Tree) -> None:
    assert tree.root is not None, "trees of the graph have a root"
    if lower_pointwise(scope, tree):
        return
    root = tree.root.outputs[0]
    axes = axes_of(scope.shape(root))
    reader = Reader(scope, tree)
    value = reader.node(tree.root, tuple(index(axis) for axis in axes))
    store(scope, axes, value, reader, scope.result(root, apart=True), tree.in_order)


def _lower_alone(scope: Scope, node: ir.Node, by_counts: ByCounts) -> None:
    """A node that no other one joins: by its template, or as plain loops where there is none for it."""
    definition = by_counts.get(node, definition_of(node))
    if definition is None:
        _lower_alone_by_template(scope, node)
        return
    with contextlib.suppress(NotLowered, KernelsError):
        if node not in by_counts:
            _lower_alone_by_template(scope, node)
            return
    lower_defined(scope, node, definition)


def _lower_alone_by_template(scope: Scope, node: ir.Node) -> None:
    if joins_images(scope, node):
        lower_joining(scope, node)
        return
    if slices_images(scope, node):
        lower_slice(scope, node)
        return
    if splits_images(scope, node):
        lower_split(scope, node)
        return
    lowering = _BY_DOMAIN.get(node.domain, {}).get(node.op_type)
    if lowering is None:
        raise NotLowered(f"{node.op_type} '{node.name or node.outputs[0].name}' has no kernel yet.")
    lowering(scope, node)


ALONE: dict[str, Callable[[Scope, ir.Node], None]] = {
    "Attention": lower_attention,
    "Einsum": lower_einsum,
    "Pad": lower_pad,
    "If": lower_if,
    "Loop": lower_loop,
    "Scan": lower_scan,
    "RotaryEmbedding": lower_rotary,
    **dict.fromkeys(MOVEMENTS, lower_movement),
    **dict.fromkeys(KERNELS, lower_dense),
    **dict.fromkeys(CELLS, lower_recurrent),
}
_BY_DOMAIN: dict[str, dict[str, Callable[[Scope, ir.Node], None]]] = {
    "": ALONE, "ai.onnx": ALONE, "com.microsoft": {"MatMulNBits": lower_bits},
}  # fmt: skip

"""Ensembles of decision trees (ai.onnx.ml): every row walks down each tree, and the leaves' weights are joined.

Labels that are texts are no numbers, and refused. Scores and labels of two classes are as ONNX Runtime gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from graphopt.model.nodes import attribute_of
from graphopt.program.regions.routines.scores import NONE, post_transformed
from graphopt.program.regions.routines.stage import Defined, Definition, Stage
from kernels.dtype import DType
from kernels.routine.grammar import Local
from kernels.routine.writer import (
    Grid,
    as_type,
    both,
    either,
    eq,
    ge,
    gt,
    integer,
    le,
    lt,
    maximum,
    minimum,
    ne,
    number,
    pick,
    quotient,
)
from kernels.tensor.expression import Expression, Unary

I32, I64, BOOL = DType.I32, DType.I64, DType.BOOL
LANES = 8  # walks at a time: about as many loads as there are instructions between two of a walk
FEW_ROWS, MOST_ROWS = 128, 1024  # that go down a tree before the next one
LARGE = 1 << 19  # bytes of nodes: a cache of a core does not keep them from one row to the next
NODE, CHILDREN = 4, 2  # numbers of a node: a feature, a split and two children
LEAF, MEMBER = -1, 6
_MODES = {
    "BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4, "BRANCH_NEQ": 5,
    "BRANCH_MEMBER": MEMBER, "LEAF": LEAF,
}  # fmt: skip
_COMPARE = (le, lt, ge, gt, eq, ne)


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees as arrays over nodes; a child below 0 is the leaf -1 - child, whose weights are a range of arrays."""

    roots: Sequence[int]
    features: Sequence[int]
    modes: Sequence[int]
    splits: Sequence[float]
    children: tuple[Sequence[int], Sequence[int]]  # where the test holds, and where not
    missing: Sequence[int]  # whether NaN takes the first child
    members: tuple[Sequence[int], Sequence[float]]  # where each node's set begins (and one end), and the sets
    leaves: Sequence[int]  # where each leaf's weights begin, and one end
    targets: Sequence[int]
    weights: Sequence[float]


def _array(node: Defined, name: str) -> np.ndarray | None:
    """An attribute that is a list of numbers or a tensor; a tensor `name`_as_tensor goes before it."""
    for one in (f"{name}_as_tensor", name):
        found = attribute_of(node.node, one)
        if found is not None:
            return np.asarray(found.value.numpy() if hasattr(found.value, "numpy") else found.value)
    return None


def _of_ensemble(node: Defined) -> Forest:
    """The trees of TreeEnsemble, since version 5."""
    arrays = {name: _array(node, name) for name in (
        "nodes_featureids", "nodes_modes", "nodes_splits", "nodes_truenodeids", "nodes_falsenodeids",
        "nodes_trueleafs", "nodes_falseleafs", "nodes_missing_value_tracks_true", "leaf_targetids", "leaf_weights",
        "tree_roots", "membership_values",
    )}  # fmt: skip
    held = {name: array for name, array in arrays.items() if array is not None}
    count, leaves = len(held["nodes_featureids"]), len(held["leaf_weights"])
    yes, no = (
        [-1 - int(to) if is_leaf else int(to) for to, is_leaf in zip(held[ids], held[flags], strict=True)]
        for ids, flags in (("nodes_truenodeids", "nodes_trueleafs"), ("nodes_falsenodeids", "nodes_falseleafs"))
    )
    roots = [yes[root] if yes[root] == no[root] < 0 else int(root) for root in held["tree_roots"]]
    starts, values = [0], [float(one) for one in held.get("membership_values", ())]
    sets = iter(np.split(np.array(values), np.flatnonzero(np.isnan(values)) + 1))
    flat: list[float] = []
    for mode in held["nodes_modes"]:
        if mode == MEMBER:
            flat += [one for one in next(sets) if one == one]
        starts.append(len(flat))
    return Forest(
        roots, held["nodes_featureids"].tolist(), held["nodes_modes"].tolist(), held["nodes_splits"].tolist(),
        (yes, no), held.get("nodes_missing_value_tracks_true", np.zeros(count)).tolist(), (starts, flat),
        list(range(leaves + 1)), held["leaf_targetids"].tolist(), held["leaf_weights"].tolist(),
    )  # fmt: skip


def _of_lists(node: Defined, prefix: str) -> Forest:
    """The trees of TreeEnsembleRegressor (prefix "target") and TreeEnsembleClassifier ("class")."""
    trees, ids = (node.integers(name) for name in ("nodes_treeids", "nodes_nodeids"))
    names = attribute_of(node.node, "nodes_modes")
    modes = [_MODES[str(one)] for one in names.value] if names is not None else []
    place = {key: at for at, key in enumerate(zip(trees, ids, strict=True))}
    held: dict[tuple[int, int], list[tuple[int, float]]] = {}
    weights = _array(node, f"{prefix}_weights")
    assert weights is not None, "an ensemble has weights"
    keys = zip(node.integers(f"{prefix}_treeids"), node.integers(f"{prefix}_nodeids"), strict=True)
    for key, target, weight in zip(keys, node.integers(f"{prefix}_ids"), weights, strict=True):
        held.setdefault(key, []).append((target, float(weight)))
    starts, pairs, leaf = [0], list[tuple[int, float]](), {}
    for at, mode in enumerate(modes):
        if mode == LEAF:
            leaf[at] = len(starts) - 1
            pairs += held.get((trees[at], ids[at]), [])
            starts.append(len(pairs))

    def child(tree: int, of: int, mode: int) -> int:
        to = place[tree, of] if mode != LEAF else 0
        return -1 - leaf[to] if to in leaf and mode != LEAF else to

    yes, no = (
        [child(tree, to, mode) for tree, to, mode in zip(trees, node.integers(name), modes, strict=True)]
        for name in ("nodes_truenodeids", "nodes_falsenodeids")
    )
    first = {tree: at for at, tree in reversed(list(enumerate(trees)))}
    roots = [-1 - leaf[first[tree]] if first[tree] in leaf else first[tree] for tree in sorted(first)]
    splits = _array(node, "nodes_values")
    missing = node.integers("nodes_missing_value_tracks_true") or (0,) * len(trees)
    return Forest(
        roots, node.integers("nodes_featureids"), [max(mode, 0) for mode in modes],
        [] if splits is None else splits.tolist(), (yes, no), missing, ([0] * (len(modes) + 1), []), starts,
        [target for target, _ in pairs], [weight for _, weight in pairs],
    )  # fmt: skip


class _Walker:
    """Writes the walks of rows through all trees, several at a time: each step waits for loads of the one before.

    A leaf is a node behind all others that is its own child, so that a walk that has ended goes on without a question.
    A node's feature, split and children lie side by side, in one line of the cache; its number is where they begin.
    """

    def __init__(self, node: Defined, w: Stage, forest: Forest, kind: DType, targets: int) -> None:
        self._w, self._forest, self._kind, self._targets = w, forest, kind, targets
        inner, leaves = len(forest.features), len(forest.leaves)  # one leaf more, without weights
        self._first_leaf = inner * NODE
        self._lanes = 1 if MEMBER in forest.modes else LANES
        self._is_steady, self._modes_used = node.is_steady, sorted(set(forest.modes))
        self._totals = w.scratch(kind, (targets,))

        def table(values: Sequence[float], dtype: DType) -> Grid:
            return w.reads(node.table(np.asarray([*values, 0], dtype.numpy)))

        def place(child: int) -> int:
            return NODE * (child if child >= 0 else inner - 1 - child)

        ends = [0] * leaves
        nodes = np.zeros((inner + leaves, NODE), np.int32)
        nodes[:inner, 0] = forest.features
        nodes[:inner, 1] = np.asarray(forest.splits, np.float32).view(np.int32)
        for at, children in enumerate(forest.children):
            nodes[:inner, CHILDREN + at] = [place(one) for one in children]
            nodes[inner:, CHILDREN + at] = self._first_leaf + NODE * np.arange(leaves)
        view = node.table(nodes.reshape(-1))
        self._nodes = w.reads(view)
        self._splits = w.reads(replace(view, dtype=DType.F32)) if kind is DType.F32 else table(forest.splits, kind)
        self._steps = -(-len(forest.roots) // self._lanes)
        nothing = [int(nodes[-1, CHILDREN])] * (self._steps * self._lanes - len(forest.roots))
        self._roots = table([*map(place, forest.roots), *nothing], I32)
        self._modes = table([*map(self._modes_used.index, forest.modes), *ends], I32)
        self._missing = table([*forest.missing, *ends], I32) if any(forest.missing) else None
        self._starts, self._sets = table([*forest.members[0], *ends], I64), table(forest.members[1], kind)
        self._leaves, self._of_leaves = table([*forest.leaves, forest.leaves[-1]], I64), table(forest.targets, I64)
        self._weights = table(forest.weights, kind)
        self._has_one_each = forest.leaves == list(range(leaves))
        self._bytes = nodes.nbytes

    def run(
        self, x: Grid, first: Sequence[float], finish: Callable[[Expression, Grid], None], way: str = "SUM"
    ) -> None:  # fmt: skip
        """The weights of each row's leaves joined to the `first` ones: "SUM", "MIN" or "MAX"; `finish` takes totals.

        Many rows go down one tree after the other, side by side, while its nodes are at hand; a row alone goes down
        several trees at a time.
        """
        w, rows = self._w, x.shape[0]
        if self._is_steady or rows < 2 * LANES or self._lanes == 1:
            with w.shared(rows) as (row,):
                self._alone(x, row, first, finish, way)
            return
        most = FEW_ROWS if self._bytes <= LARGE else MOST_ROWS
        together = max(LANES, min(most, -(-rows // (8 * LANES)) * LANES))
        held = w.scratch(self._kind, (together * self._targets,))
        with w.shared(-(-rows // together)) as (part,):
            start = w.local(I64, part * together)
            groups = w.local(I64, quotient(minimum(rows - start, together), LANES))
            with w.loop(groups * LANES) as row:
                self._begin(held, row * self._targets, first)
            with w.loop(len(self._forest.roots)) as tree, w.loop(groups) as group:
                lanes = [w.local(I64, group * LANES + lane) for lane in range(LANES)]
                here = [w.local(I64, as_type(self._roots.at(tree), I64)) for _ in lanes]
                self._walk(x, [w.local(I64, (start + lane) * x.shape[-1]) for lane in lanes], here)
                for lane, one in zip(lanes, here, strict=True):
                    self._join(held, lane * self._targets, one, way)
            with w.loop(groups * LANES) as row:
                with w.loop(self._targets) as target:
                    self._totals.put(target, held.at(row * self._targets + target))
                finish(start + row, self._totals)
            with w.loop(minimum(start + together, rows), start + groups * LANES) as row:
                self._alone(x, row, first, finish, way)

    def _alone(
        self, x: Grid, row: Expression, first: Sequence[float], finish: Callable[[Expression, Grid], None], way: str
    ) -> None:  # fmt: skip
        w, lanes = self._w, range(self._lanes)
        self._begin(self._totals, integer(0), first)
        base = w.local(I64, row * x.shape[-1])
        with w.loop(self._steps) as step:
            here = [w.local(I64, as_type(self._roots.at(step * self._lanes + lane), I64)) for lane in lanes]
            self._walk(x, [base] * self._lanes, here)
            for one in here:
                self._join(self._totals, integer(0), one, way)
        finish(row, self._totals)

    def _begin(self, totals: Grid, base: Expression, first: Sequence[float]) -> None:
        if len(set(first)) == 1:
            with self._w.loop(self._targets) as target:
                totals.put(base + target, number(first[0], self._kind))
        else:
            for place, value in enumerate(first):
                totals.put(base + place, number(value, self._kind))

    def _walk(self, x: Grid, bases: Sequence[Expression], here: Sequence[Local]) -> None:
        """To the leaves, all together; `bases` is where in x the row of each begins."""
        w, least = self._w, self._w.local(I64, here[0])
        for one in here[1:]:
            w.set(least, minimum(least, one))
        with w.loop_while(lt(least, self._first_leaf)):
            for base, one in zip(bases, here, strict=True):
                value = w.local(self._kind, as_type(x.at(base + as_type(self._nodes.at(one), I64)), self._kind))
                holds = self._test(one, value)
                if self._missing is not None:
                    tracks = ne(self._missing.at(quotient(one, NODE)), 0)
                    holds = either(holds, both(Unary("is_nan", value), tracks))
                child = one + CHILDREN + as_type(Unary("not", holds), I64)
                w.set(one, as_type(self._nodes.at(child), I64))
            w.set(least, here[0])
            for one in here[1:]:
                w.set(least, minimum(least, one))

    def _join(self, totals: Grid, base: Expression, here: Expression, way: str) -> None:
        """Add the weights of a leaf to totals that begin at a place."""
        w = self._w
        leaf = w.local(I64, quotient(here - self._first_leaf, NODE))

        def add(at: Expression) -> None:
            target = w.local(I64, base if self._targets == 1 else base + self._of_leaves.at(at))
            old, new = totals.at(target), self._weights.at(at)
            joined = {"MIN": minimum, "MAX": maximum}.get(way)
            totals.put(target, old + new if joined is None else joined(old, new))

        if self._has_one_each and way == "SUM":  # that of the leaf without weights is 0
            add(leaf)
        else:
            with w.loop(self._leaves.at(leaf + 1), self._leaves.at(leaf)) as at:
                add(at)

    def _test(self, place: Expression, value: Expression) -> Expression:
        w, used = self._w, self._modes_used
        here, found = quotient(place, NODE), w.local(BOOL, False)
        split = self._splits.at(place + 1 if self._kind is DType.F32 else here)
        for known_as, mode in enumerate(used):
            if mode == MEMBER:
                is_set, end = eq(self._modes.at(here), known_as), self._starts.at(here + 1)
                with w.when(is_set), w.loop(end, self._starts.at(here)) as at:
                    w.set(found, either(found, eq(self._sets.at(at), value)))
            else:
                one = _COMPARE[mode](value, split)
                w.set(found, one if len(used) == 1 else either(found, both(eq(self._modes.at(here), known_as), one)))
        return found


def ensemble(node: Defined) -> None:
    """TreeEnsemble and TreeEnsembleRegressor: a row of targets for each row."""
    is_old = node.node.op_type == "TreeEnsembleRegressor"
    forest = _of_lists(node, "target") if is_old else _of_ensemble(node)
    ways = ("AVERAGE", "SUM", "MIN", "MAX")
    way = node.text("aggregate_function", "SUM") if is_old else ways[node.integer("aggregate_function", 1)]
    post = node.text("post_transform", "NONE") if is_old else NONE[node.integer("post_transform", 0)]
    base = _array(node, "base_values")
    kind = DType.F64 if node.dtype(0) is DType.F64 else DType.F32
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        targets = y.shape[-1]

        def finish(row: Expression, totals: Grid) -> None:
            for target in range(targets):
                total: Expression = totals[target]
                total = pick(Unary("is_inf", total), number(0, kind), total) if way in ("MIN", "MAX") else total
                total = total / len(forest.roots) if way == "AVERAGE" else total
                totals[target] = total if base is None or not base.size else total + float(base[target % base.size])
            post_transformed(w, totals, post)
            with w.loop(targets) as at:
                y[row, at] = as_type(totals[at], y.dtype)

        nothing = {"MIN": inf, "MAX": -inf}.get(way, 0.0)
        _Walker(node, w, forest, kind, targets).run(x, [nothing] * targets, finish, way)


def _both_in_every_leaf(forest: Forest) -> bool:
    """Whether each leaf has a weight for either of two classes, as CatBoost writes them."""
    ends = zip(forest.leaves[:-1], forest.leaves[1:], strict=True)
    return all(set(forest.targets[start:end]) == {0, 1} for start, end in ends)


def classifier(node: Defined) -> None:
    """TreeEnsembleClassifier: the label of the best class, and the scores of all."""
    labels = node.integers("classlabels_int64s")
    if not labels:
        raise node.refuse("has labels that are texts")
    forest, post, base = _of_lists(node, "class"), node.text("post_transform", "NONE"), _array(node, "base_values")
    kind = DType.F64 if node.dtype(0) is DType.F64 else DType.F32
    only = set(forest.targets) if len(labels) == 2 else set()
    single, pair = len(only) == 1, len(only) == 2
    if len(labels) == 1:
        raise node.refuse("has one class, which is not written")
    if len(labels) == 2 and base is not None and base.size > 1:
        raise node.refuse("has two classes and a base value for each, which is not written")
    if pair and (labels != (0, 1) or not _both_in_every_leaf(forest)):
        # The second class's score decides, and a label that is 1 or 0 whatever the names are.
        raise node.refuse(
            "has two classes with weights of their own that some leaf lacks, or other labels than 0 and 1"
        )
    with node.stage() as w:
        x = w.reads(node.input(0))
        label = w.writes(node.output(0)) if node.wants(0) else None
        y = w.writes(node.output(1)) if node.wants(1) else None
        names = w.reads(node.table(np.asarray(labels, np.int64))) if label is not None else None

        def finish(row: Expression, totals: Grid) -> None:
            best = w.local(I64, 0)
            if single:
                score = w.local(kind, totals[min(only)] + (0.0 if base is None or not base.size else float(base[0])))
                positive = all(weight >= 0 for weight in forest.weights)
                w.set(best, as_type(gt(score, 0.5 if positive else 0.0), I64))
                totals[0] = 1.0 - score if positive and post != "LOGISTIC" else -score
                totals[1] = score
            elif pair:
                w.set(best, as_type(gt(totals[1], 0), I64))
            else:
                with w.loop(len(labels)) as at:
                    w.set(best, pick(gt(totals[at], totals[best]), at, best))
            if not single or post == "LOGISTIC":
                post_transformed(w, totals, post)
            if label is not None and names is not None:
                label.put(row, names.at(best))
            if y is not None:
                with w.loop(len(labels)) as at:
                    y[row, at] = as_type(totals[at], y.dtype)

        based = [] if base is None or single else base.tolist()
        first = [float(based[place]) if place < len(based) else 0.0 for place in range(len(labels))]
        _Walker(node, w, forest, kind, len(labels)).run(x, first, finish)


ML_DEFINITIONS: dict[str, Definition] = {
    "TreeEnsemble": ensemble,
    "TreeEnsembleRegressor": ensemble,
    "TreeEnsembleClassifier": classifier,
}

"""A model's own rounding, sampled: its results when it is moved by as little as numbers can be.

Inputs are moved by one unit in the last place, weights likewise, the engine sums in another order where its
optimizations are on, the model is run in float64, or in float16 as ONNX defines it where engines keep more, and the
results of sums are moved by a unit of theirs or of their terms, as another order would, and gates decide the other way
where these samples leave open what they decide (check.gates). Results of functions of a fixed range are moved by a unit
of one, and subnormal results are zeros. Numbers that are rounded to steps are moved by as much as counts as equal, for
which of them stand beside a tie is luck. A rewrite that is right differs from the original in just that way. Samples
are made when a difference asks for them, the cheapest first, and kept.

Operators that ONNX Runtime fuses are taken apart for that: their sums are moved, and float64 has no kernels for them.
Values that stand on ties on purpose are not moved, nor are constants with few digits: they are meant as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx_ir as ir

from graphopt.check.double import Definition, Double, Stored, has_short_types
from graphopt.check.feeds import EXACT, Feed
from graphopt.check.gates import Gates, decides, gates_of, has_squares, squares_of, widths_of
from graphopt.check.held import Held
from graphopt.check.lineage import STATE_SCALES
from graphopt.check.moved import (
    moved_array,
    moved_functions,
    moved_orders,
    moved_steps,
    moved_subnormals,
    moved_sums,
    moved_weights,
)
from graphopt.check.runner import CannotRun, Runner, Workplace
from graphopt.model.bodies import put_bodies
from graphopt.model.contrib.bodies import has_body
from graphopt.model.functions import inlined
from graphopt.model.oversized import oversized
from graphopt.model.rooms import let_go
from graphopt.model.save import weight_bytes

# Of weights, with which the engine's optimizations are tried, that holds them itself then, and samples of many.
ENGINE_BYTES = 256 << 20
STEPPED_WAYS = ("steps", "steps again", "steps once more")
# Few elements stand beside a tie, and what a step of one moves differs from element to element: these come last.
MORE_STEPS = tuple(f"steps, sample {number}" for number in range(4, 13))
Cut = Callable[[ir.Model], "Gates | None"]
SMOOTH_WAYS = (
    "inputs", "weights", "double", "definition", "engine", "both", "both again", "both once more", "sums",
)  # fmt: skip
# Where a model is cut, and the direction in which what gates compare, or what is squared, is moved.
GATED_WAYS: Mapping[str, tuple[Cut, int]] = {
    "gates": (gates_of, -1), "gates open": (gates_of, 1), "squares": (squares_of, -1), "squares up": (squares_of, 1),
}  # fmt: skip
WAYS = (*SMOOTH_WAYS, *GATED_WAYS, *STEPPED_WAYS, "orders", "functions", "subnormals", *MORE_STEPS)
SQUARES_FIRST = tuple(dict.fromkeys(("inputs", "weights", "squares", *WAYS)))
# Of what is squared; the engine would hold as much again in a process of its own.
OPERAND_WAYS = (*(way for way in SMOOTH_WAYS if way != "engine"), "gates", "gates open")
MORE_LATER = tuple(f"later {way}" for way in MORE_STEPS)
LATER_WAYS = (*(f"later {way}" for way in STEPPED_WAYS), *MORE_LATER)
EXACT_WAYS = ("weights", "double", "definition", "engine", *LATER_WAYS)

_MOVERS: Mapping[str, Callable[[ir.Model], ir.Model | None]] = {
    "weights": moved_weights, "sums": moved_sums, "orders": moved_orders, "functions": moved_functions,
    "subnormals": moved_subnormals,
    **{way: partial(moved_steps, seed=seed) for seed, way in enumerate((*STEPPED_WAYS, *MORE_STEPS))},
    **{way: partial(moved_steps, seed=seed, later=True) for seed, way in enumerate(LATER_WAYS)},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One feed of the original, and its outputs."""

    feed: Feed
    outputs: Sequence[object]
    draw: str  # the kind of its values (check.feeds), "given" for the user's own
    samples: list[Sequence[object]] = field(default_factory=list)  # of the outputs, as far as they were asked for


class Noise:
    """Samples of what the original gives for a case, moved by its own rounding."""

    def __init__(
        self,
        workplace: Workplace,
        model: ir.Model,
        runner: Runner,
        sound: bool,
        work: Callable[[], int],
        cases: Sequence[Case] = (),
        held: Held | None = None,
    ) -> None:
        """`runner` has the model loaded; `work` says what a run takes; the first of the `cases` is an ordinary one.

        Samples are kept in what is `held` by the check.
        """
        self._workplace, self._runner, self._sound = workplace, runner, sound
        self._model = inlined(model) if model.functions else model  # what a function computes is moved too
        self._work, self._cases = work, cases
        self._held = Held() if held is None else held
        # Inputs that hold weights, as a training step has them: they are moved as weights are.
        self._fed = [value.name or "" for value in model.graph.inputs if value.const_value is not None]
        self._runners: dict[str, Runner | None] = {}
        self._computed: dict[str, Double | Definition | Stored | None] = {}
        self._plain: tuple[ir.Model, bool] | None = None
        self._gated: dict[Cut, _Gated | None] = {}
        # What moves a step of Adam most is tried early: samples of a large one take long.
        self._ways = SQUARES_FIRST if has_squares(model) else WAYS
        self._exact_ways: tuple[str, ...] = ()

    def samples(self, case: Case) -> Iterator[Sequence[object]]:
        """One after the other; the first ones are those that were made before."""
        ways = self._ways
        if case.draw in EXACT:
            if not self._exact_ways:  # a function's result may stand on a tie, but where nothing decides by it
                self._exact_ways = EXACT_WAYS if decides(self._model) else (*EXACT_WAYS, "functions")
            ways = self._exact_ways
        if case.draw == "zeros":  # which stay zeros where numbers are moved; what biases make of them is no tie
            ways = (*ways, "sums", *STEPPED_WAYS)
        for number, way in enumerate(ways):
            if number == len(case.samples):
                found = self.moved(case, way)
                case.samples.append(case.outputs if found is None else self._held.all(found))
                del found  # which would else be there while this one is compared
                self._held.make_room()
            if case.samples[number] is not case.outputs:
                yield case.samples[number]

    def defined(self, case: Case) -> Sequence[object] | None:
        """The outputs by ONNX's own definitions of all operators; None where its evaluator cannot run the model."""
        return self._in_other_types(case, "defined")

    def moved(self, case: Case, way: str) -> Sequence[object] | None:
        """The outputs, moved in one way; None where that way moves nothing or cannot be run."""
        self._held.make_room()
        if way in ("double", "definition"):
            return self._in_other_types(case, way)
        if way in GATED_WAYS:
            return self._decided(case, *GATED_WAYS[way])
        feed = case.feed
        if way in ("inputs", "both", "both again", "both once more"):
            moved = {name: self._moved(value, WAYS.index(way)) for name, value in feed.items()}
            if way == "inputs" and all(moved[name] is feed[name] for name in feed):
                return None
            feed = moved
        other = way if way == "engine" or way in _MOVERS else "weights"
        runner = self._runner if way == "inputs" else self._other(other)
        if way == "weights" and self._fed:
            moved = {name: self._moved(feed[name], len(WAYS)) for name in self._fed if name in feed}
            feed = {**feed, **moved}
        if other == "weights" and self._fed:  # which are inputs, and moved with them
            runner = runner or self._runner
        if runner is None:
            return None
        try:
            return list(runner.run(feed))[: len(case.outputs)]
        except CannotRun:
            return None

    def _moved(self, value: object, seed: int) -> object:
        """An input that is moved, held as samples are."""
        moved = moved_array(value, seed)
        let_go(value)
        return moved if moved is value else self._held.one(moved)

    def _decided(self, case: Case, cut: Cut, direction: int) -> Sequence[object] | None:
        """The outputs where gates decide the other way, of what lies on one side of their kinks."""
        if cut not in self._gated:
            self._gated[cut] = self._made_of(cut)
        gated = self._gated[cut]
        if gated is None:
            return None
        try:
            moved = gated.moved(case, direction)
            return None if moved is None else list(gated.runner.run({**case.feed, **moved}))[: len(case.outputs)]
        except CannotRun:
            return None

    def _made_of(self, cut: Cut) -> _Gated | None:
        """The model without what its gates decide, and the model of what they compare; None without gates."""
        plain, is_sound = self._spelled_out()
        gates = cut(plain)
        if gates is None or oversized(gates.operands) is not None:
            return None
        with suppress(CannotRun):
            operands = self._workplace.runner(gates.operands, is_sound)
            noise = Noise(self._workplace, gates.operands, operands, is_sound, self._work, held=self._held)
            runner = self._workplace.runner(gates.decided, is_sound)
            ways = SMOOTH_WAYS if cut is gates_of else OPERAND_WAYS
            return _Gated(gates, operands, noise, runner, ways, self._held)
        return None

    def _in_other_types(self, case: Case, way: str) -> Sequence[object] | None:
        """The outputs computed in float64, or in the model's own types as ONNX defines them."""
        try:
            if way not in self._computed:
                self._computed[way] = None
                plain, is_sound = self._spelled_out()
                if way == "double":
                    self._computed[way] = self._in_double(plain, is_sound)
                elif way == "defined" or (is_sound and has_short_types(plain)):
                    self._computed[way] = self._defined(way, plain)
            found = self._computed[way]
            return None if found is None else found.run(case.feed, case.outputs)
        except CannotRun:
            return None

    def _defined(self, way: str, plain: ir.Model) -> Definition | Stored:
        """The model as ONNX defines it; raises CannotRun. A sample of a large one comes from ONNX Runtime."""
        try:
            return Definition(plain, self._work())
        except CannotRun:
            if way == "defined":
                raise
            return Stored(self._workplace, plain)

    def _in_double(self, plain: ir.Model, is_sound: bool) -> Double:
        """The model in float64, tried on an ordinary case: where rounding decides all, floats tell nothing of it."""
        found = Double(self._workplace, plain, self._work(), is_sound)
        for first in self._cases[:1]:
            with suppress(CannotRun):
                found.run(first.feed, first.outputs)
        return found

    def _other(self, way: str) -> Runner | None:
        """The original with moved weights or sums, or in the engine with its optimizations."""
        if way not in self._runners:
            self._runners[way] = None
            is_small = weight_bytes(self._model) <= ENGINE_BYTES
            try:
                if way == "engine" and self._sound and is_small:
                    self._runners[way] = self._workplace.runner(self._model, True, optimized=True)
                elif way in _MOVERS and (is_small or way not in (*MORE_STEPS, *MORE_LATER)):
                    plain, is_sound = (self._model, self._sound) if way == "weights" else self._spelled_out()
                    moved = _MOVERS[way](plain)
                    if moved is not None and oversized(moved) is None:
                        self._runners[way] = self._workplace.runner(moved, is_sound)
            except CannotRun:
                pass
        return self._runners[way]

    def _spelled_out(self) -> tuple[ir.Model, bool]:
        """The model with ONNX Runtime's own operators as those of the standard, and whether that is sound.

        Itself where it has none. Some of these operators stand in ONNX's domain, which lacks them.
        """
        if self._plain is None:
            self._plain = self._model, self._sound
            if any(map(_is_taken_apart, self._model.graph)):
                plain = self._model.clone()
                put_bodies(plain, lambda facts: [node for node in plain.graph if _is_taken_apart(node)])
                self._plain = plain, self._sound or self._workplace.checker_error(plain, full=True) is None
        return self._plain


def _is_taken_apart(node: ir.Node) -> bool:
    """Whether an operator's body takes its place; that of a recurrent layer is a Scan, whose inside is not moved."""
    return has_body(node) and node.op_type not in STATE_SCALES


@dataclass(slots=True)
class _Gated:
    """The gates of a model, ready to run: what they compare, how far its rounding moves that, and what they let on."""

    gates: Gates
    operands: Runner
    noise: Noise  # of the operands
    runner: Runner  # takes what the gates decide
    ways: Sequence[str]  # in which the operands are moved
    held: Held  # by the check
    _known: tuple[Case, Mapping[int, Mapping[str, object] | None]] | None = None  # of the last case, by direction

    def moved(self, case: Case, direction: int) -> Mapping[str, object] | None:
        """What gates decide if all that they compare is moved in a direction; None where that is what they decide."""
        if self._known is None or self._known[0] is not case:
            self._known = None
            compared = [np.asarray(self.held.one(one)) for one in self.operands.run(case.feed)]
            of_operands = Case(case.feed, compared, case.draw)
            samples = (self.noise.moved(of_operands, way) for way in self.ways)
            widths = widths_of(compared, (sample for sample in samples if sample is not None), self.held)
            self._known = case, {one: self.gates.moved(compared, widths, one, self.held) for one in (-1, 1)}
        return self._known[1][direction]

"""One direction of a recurrent layer, as the gradients of its cells read it: gates, states, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphopt.model.operators.gradients.backward import Backward
from graphopt.model.operators.gradients.products import product
from graphopt.model.operators.gradients.terms import Term

# The slope of an activation from its result.
SLOPES: dict[str, Callable[[Term], Term]] = {
    "Sigmoid": lambda y: y * (1.0 - y),
    "Tanh": lambda y: 1.0 - y.squared(),
    "Relu": lambda y: (y > 0.0).cast(y.dtype),
}
Stepped = tuple[Sequence[Term], Sequence[Term]]  # states, and what is kept
X, WEIGHTS, RECURRENT, BIASES, LENGTHS, START, CELL, PEEPHOLES = range(8)  # operands


@dataclass(frozen=True, eq=False)
class Layer:
    """One direction of a recurrent layer of H hidden units and G gates, its steps in the order of their computation."""

    back: Backward
    x: Term  # [T, N, I]
    weights: Term  # [G H, I]
    recurrent: Term  # [G H, H]
    biases: Term | None  # [2 G H]: with the input, with the state
    start: Term  # [N, H]
    cell: Term | None  # [N, H]: the first cell of an LSTM
    y: Term  # [T, N, H]
    incoming: tuple[Term | None, ...]  # gradients of the states of all steps, of the last state, and of the last cell
    inside: Term | None  # [T, N, 1]: 1 for steps of a sequence, 0 for those behind its end
    activations: tuple[str, ...]
    peepholes: Term | None  # [3 H]: what the gates i, o and f of an LSTM read of cells
    clip: float  # of what activations read; 0: none

    @property
    def hidden(self) -> int:
        """H."""
        return self.recurrent.sizes[1]

    @cached_property
    def states(self) -> Term:
        """[T, N, H]: the state that each step starts from."""
        return self.before(self.start, self.y)

    def before(self, first: Term, states: Term) -> Term:
        """[T, N, H]: what each step starts from."""
        return self.y.maker.join([first.unsqueeze(0), states.slice(0, 0, -1)], 0).reshape_like(self.y)

    def by_input(self) -> Term:
        """[T, N, G H]: the input's part of all gates, with its bias."""
        return self._gates(self.x, self.weights, 0, self.weights.sizes[0])

    def by_state(self, states: Term, first: int, end: int) -> Term:
        """[T, N, (end - first) H]: the part of states in a range of gates, with its bias."""
        start, stop, total = first * self.hidden, end * self.hidden, self.recurrent.sizes[0]
        weights = self.recurrent if (start, stop) == (0, total) else self.recurrent.slice(0, start, stop)
        return self._gates(states, weights, total + start, stop - start)

    def _gates(self, rows: Term, weights: Term, bias: int, size: int) -> Term:
        found = product(self.y.maker, _flat(rows), weights, turn_right=True)
        if self.biases is not None:
            found = found + self.biases.slice(0, bias, bias + size)
        return found.reshape(self.y.dim(0), self.y.dim(1), size)

    def part(self, gates: Term, number: int) -> Term:
        """[T, N, H]: one gate of [T, N, G H]."""
        return gates.slice(2, number * self.hidden, (number + 1) * self.hidden)

    def activated(self, gate: Term, activation: int, *, of_cells: bool = False) -> tuple[Term, Term]:
        """An activation's result, and its slope there: 0 where the gate is clipped, which cells are not."""
        name, maker = self.activations[activation], gate.maker
        if not self.clip or of_cells:
            result = gate.apply(name)
            return result, SLOPES[name](result)
        drawn = maker.op("Min", maker.op("Max", gate, gate.number(-self.clip)), gate.number(self.clip))
        result = drawn.apply(name)
        return result, SLOPES[name](result) * drawn.equals(gate).cast(gate.dtype)

    def masked(self, term: Term) -> Term:
        """0 behind the ends of sequences."""
        return term if self.inside is None else term * self.inside

    def passed(self, term: Term) -> Term:
        """1 behind the ends of sequences."""
        return term if self.inside is None else term * self.inside + (1.0 - self.inside)

    def last(self, position: int) -> Term:
        """The gradient of the last state or cell: [N, H]."""
        found = self.incoming[position]
        return self.start.zeros() if found is None else found

    def backwards(
        self,
        states: Sequence[Term],
        factors: Sequence[Term],
        step: Callable[..., Stepped],
    ) -> Stepped:
        """The steps from the last one to the first; each gets the gradient of its state, other states, and factors."""
        dy = self.incoming[0]
        rows = [*([] if dy is None else [self.masked(dy)]), *factors]

        def body(states: Sequence[Term], rows: Sequence[Term]) -> Stepped:
            state = states[0] if dy is None else states[0] + rows[0]
            return step(state, *states[1:], *rows[len(rows) - len(factors) :])

        return self.y.maker.scan(states, rows, body, backwards=True)

    def stay(self) -> list[Term]:
        """The share of a state that a step hands on beside its gates, where sequences have ends: [T, N, 1]."""
        return [] if self.inside is None else [1.0 - self.inside]

    def found(self, gates: Term, start: Term, *, reads: Sequence[tuple[Term, Term]] = (), cell: Term | None = None,
              shared: Term | None = None) -> dict[int, Term]:  # fmt: skip
        """The gradients by operand, from those of the input's part of the gates.

        `reads` are the gradients of the state's part, by ranges of gates, with the states that they met; none: those of
        `gates` and the states before. `shared` is the gradient of the state's bias where that is not the input's.
        """
        maker, flat, given = self.y.maker, _flat(gates), {START: start}
        if self.back.wants(X):
            given[X] = product(maker, flat, self.weights).reshape_like(self.x)
        if self.back.wants(WEIGHTS):
            given[WEIGHTS] = product(maker, flat, _flat(self.x), turn_left=True)
        if self.back.wants(RECURRENT):
            met = reads or [(gates, self.states)]
            parts = [product(maker, _flat(left), _flat(states), turn_left=True) for left, states in met]
            given[RECURRENT] = maker.join(parts, 0)
        if self.back.wants(BIASES):
            bias = gates.sum(0, 1, keep=False)
            given[BIASES] = maker.join([bias, bias if shared is None else shared.sum(0, 1, keep=False)], 0)
        if cell is not None:
            given[CELL] = cell
        return given


def _flat(term: Term) -> Term:
    """[T, N, F] as [T N, F]."""
    return term.reshape(term.maker.ints(-1), term.dim(2))

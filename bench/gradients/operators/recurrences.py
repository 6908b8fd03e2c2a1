"""RNN, GRU and LSTM step by step, in both directions, with lengths, initial states and peepholes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gradients.node import Function, Node, Results
from bench.gradients.operators.movement import reversed_rows

Activation = Callable[[Tensor], Tensor]
PLAIN: Mapping[str, Activation] = {
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "softsign": F.softsign, "softplus": F.softplus,
}  # fmt: skip
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction: weights, biases of input and state, and the functions of its gates."""

    w: Tensor  # [gates * hidden, inputs]
    r: Tensor  # [gates * hidden, hidden]
    wb: Tensor  # [gates * hidden]
    rb: Tensor
    peepholes: Tensor | None  # [3 * hidden]
    functions: list[Activation]
    node: Node


States = tuple[Tensor, ...]


def _rnn(at: Direction, x: Tensor, states: States) -> States:
    (h,) = states
    return (at.functions[0](F.linear(x, at.w, at.wb) + F.linear(h, at.r, at.rb)),)


def _gru(at: Direction, x: Tensor, states: States) -> States:
    (h,) = states
    gate, candidate = at.functions
    wz, wr, wh = F.linear(x, at.w, at.wb).chunk(3, -1)
    if at.node.get("linear_before_reset", 0):
        rz, rr, rh = F.linear(h, at.r, at.rb).chunk(3, -1)
        update, reset = gate(wz + rz), gate(wr + rr)
        fresh = candidate(wh + reset * rh)
    else:
        size = h.shape[-1]
        rz, rr = F.linear(h, at.r[: 2 * size], at.rb[: 2 * size]).chunk(2, -1)
        update, reset = gate(wz + rz), gate(wr + rr)
        fresh = candidate(wh + F.linear(reset * h, at.r[2 * size :], at.rb[2 * size :]))
    return ((1 - update) * fresh + update * h,)


def _lstm(at: Direction, x: Tensor, states: States) -> States:
    h, c = states
    gate, candidate, output = at.functions
    i, o, f, g = (F.linear(x, at.w, at.wb) + F.linear(h, at.r, at.rb)).chunk(4, -1)
    pi, po, pf = (0.0, 0.0, 0.0) if at.peepholes is None else at.peepholes.chunk(3)
    i = gate(i + pi * c)
    f = 1 - i if at.node.get("input_forget", 0) else gate(f + pf * c)
    c = f * c + i * candidate(g)
    return gate(o + po * c) * output(c), c


CELLS = {"RNN": (1, _rnn), "GRU": (3, _gru), "LSTM": (4, _lstm)}


def _functions(node: Node, directions: int) -> Iterator[list[Activation]]:
    names = node.get("activations") or DEFAULTS[node.operator] * directions
    if node.get("clip") or node.get("activation_alpha") or node.get("activation_beta"):
        raise node.refuse("with clip or numbers of its activations")
    if any(name.lower() not in PLAIN for name in names):
        raise node.refuse(f"with {names}")
    each = len(names) // directions
    for number in range(directions):
        yield [PLAIN[name.lower()] for name in names[number * each : (number + 1) * each]]


def _recurrence(node: Node) -> Results:
    x, w, r = node.inputs[:3]
    bias, lengths = node.input(3), node.input(4)
    if node.get("layout", 0):
        x = x.transpose(0, 1)
    steps, batch = x.shape[:2]
    directions, gates, cell = w.shape[0], *CELLS[node.operator]
    hidden = r.shape[-1]
    kinds = 2 if node.operator == "LSTM" else 1
    given = [node.input(5 + place) for place in range(kinds)]
    if node.get("layout", 0):
        given = [None if one is None else one.transpose(0, 1) for one in given]
    zeros = torch.zeros(directions, batch, hidden, dtype=node.dtype)
    initial = [zeros if one is None else one for one in given]
    if bias is None:
        bias = torch.zeros(directions, 2 * gates * hidden, dtype=node.dtype)
    peepholes = node.input(7) if node.operator == "LSTM" else None
    lengths = torch.full((batch,), steps) if lengths is None else lengths
    rows: list[Tensor] = []
    last: list[States] = []
    for number, functions in enumerate(_functions(node, directions)):
        biases = bias[number].chunk(2)
        at = Direction(
            w[number], r[number], biases[0], biases[1], None if peepholes is None else peepholes[number],
            functions, node,
        )  # fmt: skip
        backward = number == 1 or node.get("direction", "forward") == "reverse"
        given_rows = reversed_rows(x, lengths) if backward else x
        states: States = tuple(one[number] for one in initial)
        found = []
        for step in range(steps):
            live = (step < lengths).unsqueeze(-1)
            new = cell(at, given_rows[step], states)
            found.append(torch.where(live, new[0], torch.zeros_like(new[0])))
            states = tuple(torch.where(live, one, old) for one, old in zip(new, states, strict=True))
        whole = torch.stack(found)
        rows.append(reversed_rows(whole, lengths) if backward else whole)
        last.append(states)
    y = torch.stack(rows, 1)  # [steps, directions, batch, hidden]
    ends = [torch.stack([one[place] for one in last]) for place in range(kinds)]
    if node.get("layout", 0):
        return [y.permute(2, 0, 1, 3), *(one.transpose(0, 1) for one in ends)]
    return [y, *ends]


OPERATORS: Mapping[str, Function] = dict.fromkeys(CELLS, _recurrence)

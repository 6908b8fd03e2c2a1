"""Numbers that grow in steps of a size: a convolution of stride 2 gives (s - 3) // 2 + 1 elements of s.

No polynomial of the dims gives such a number. Where the model's own dims say by what they are divided, the quotient is
one more unknown of the polynomials (polynomials), found at samples of several remainders. By 8 a side is divided as
three convolutions do it, each time by 2: that leaves few remainders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir
import sympy

from graphopt.model.facts import Facts
from kernels.size import Operation, Size, dims_of

Formula = Callable[[object], "Size | int | None"]  # a dim of the model in those that a run sets; None: it is none


def steps_of(model: ir.Model, formula: Formula, more: Iterable[Size | int] = ()) -> tuple[Operation, ...]:
    """The quotients of one dim by a number in the dims of the main graph's values, each once, the inner ones first.

    Also in what it computes with dims, such as the end of a Slice, and behind them those of `more` numbers.
    """
    facts, found, seen = Facts(model), dict[Operation, None](), set[str]()
    for node in model.graph:
        for value in node.outputs:
            computed = facts.content(value)
            for dim in (*(facts.shape(value) or ()), *(() if computed is None else computed.flat)):
                if isinstance(dim, int) or str(dim) in seen:
                    continue
                seen.add(str(dim))
                found |= dict.fromkeys(_quotients(formula(dim)))
    for number in more:
        found |= dict.fromkeys(_quotients(number))
    return tuple(found)


def _quotients(number: Size | int | None) -> Iterator[Operation]:
    for product, _ in number.terms if isinstance(number, Size) else ():
        for atom in product:
            if isinstance(atom, Operation):
                yield from _quotients(atom.left)
                yield from _quotients(atom.right)
                if atom.kind == "quotient" and isinstance(atom.right, int) and len(dims_of(atom.left)) == 1:
                    yield from _by_primes(atom.left, atom.right)


def _by_primes(number: Size | int, parts: int) -> Iterator[Operation]:
    """The quotients by the prime factors of `parts` one after the other, the greatest first."""
    for prime in sorted(sympy.factorint(parts, multiple=True), reverse=True):
        if not isinstance(number, Size):
            return
        whole = next((factor for product, factor in number.terms if not product), 0) // prime
        number = (number - whole * prime) // prime + whole
        for product, _ in number.terms if isinstance(number, Size) else ():
            yield from (one for one in product if isinstance(one, Operation))

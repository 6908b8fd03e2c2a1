"""A small training network for tests: layers forward, then backward, features read again in reverse."""

from __future__ import annotations

from memplan.graph import Graph, Operator, Share, Value


def training(layers: int, size: int = 4096, compute: float = 300.0) -> Graph:
    """x -> f0 -> f1 ... -> loss, then g(n) from g(n+1), f(n-1) and the weights; results of the loss in place."""
    values = [Value("x", size, "input")]
    operators = []
    for number in range(layers):
        values += [Value(f"w{number}", size // 2, "constant"), Value(f"f{number}", size * (1 + number % 3))]
        reads = (f"f{number - 1}" if number else "x", f"w{number}")
        workspace = size // 4 if number % 2 else 0
        operators.append(Operator(f"forward{number}", reads, (f"f{number}",), compute, workspace))
    last = values[-1].size
    values.append(Value("loss", last))
    operators.append(Operator("loss", (f"f{layers - 1}",), ("loss",), compute))
    gradient = "loss"
    for number in reversed(range(layers)):
        before = f"f{number - 1}" if number else "x"
        made = next(value.size for value in values if value.name == before)
        values += [Value(f"g{number}", made), Value(f"u{number}", size // 2, "output")]
        reads = (gradient, before, f"w{number}")
        operators.append(Operator(f"backward{number}", reads, (f"g{number}", f"u{number}"), 2 * compute))
        gradient = f"g{number}"
    return Graph(tuple(values), tuple(operators), (Share("loss", f"f{layers - 1}", overwrites=True),))

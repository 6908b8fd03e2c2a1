"""Contents of integer inputs that declared dims decide: an input that holds a shape, of which the outputs say it.

    Resize(x, size), declared float[1, 3, 20, 30]     size holds [1, 3, 20, 30]

Dims are inferred with unlikely numbers in such inputs: a number that comes out as a dim of an output is what the model
declares there. It is believed where the dims that follow from it are the declared ones. The input stays one of the
program, which refuses a call with other numbers at these places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir
import sympy

from graphopt.check.feeds import Contents, Feed
from graphopt.model import constants, content
from graphopt.model.dims import Dims, declared
from graphopt.model.facts import Facts
from graphopt.model.known import Known

MOST = 16  # elements of an input that may hold a shape
PROBES = ((1009, 12), (5003, 14))  # first number and step: unlike any dim, unlike one another's sums and differences


def decided_contents(model: ir.Model, feeds: Sequence[Feed] = ()) -> Contents:
    """What declared dims say of the inputs of a model that has dims which nothing else tells; mostly nothing.

    Nothing is said of what one of the caller's `feeds` gives otherwise.
    """
    if not any(True for _ in _candidates(model)) or not _has_unknown_dims(model):
        return {}
    found: dict[str, dict[int, int]] = {}
    (numbers, some), (others, more) = (_probed(model, *probe) for probe in PROBES)
    for (name, place), number in numbers.items():
        pairs = ((number, some), (others[name, place], more))
        said = {dims[axis] for output, dims in _declared(model) for axis in range(len(dims))
                if all(_comes_out(one, shapes[output], axis, len(dims)) for one, shapes in pairs)}  # fmt: skip
        if len(said) == 1 and all(np.asarray(feed[name]).reshape(-1)[place] in said for feed in feeds):
            found.setdefault(name, {})[place] = said.pop()
    return found if found and _holds(model, found) else {}


def with_contents(model: ir.Model, contents: Contents) -> ir.Model:
    """The model with everything that follows from the contents computed; the inputs stay."""
    work = model.clone()
    facts = _supposing(work, contents)
    for value in list(work.graph.inputs):
        if value.name in contents:
            _replace(work.graph, facts, value)
    for node in work.graph:
        for output in node.outputs:
            _replace(work.graph, facts, output)
    return work


def _candidates(model: ir.Model) -> Iterator[ir.Value]:
    """Inputs that may hold dims."""
    for value in model.graph.inputs:
        is_vector = value.shape is not None and len(value.shape) <= 1 and declared(value) is not None
        if value.dtype in content.WIDE_TYPES and is_vector and 0 < _size(value) <= MOST and value.const_value is None:
            yield value


def _size(value: ir.Value) -> int:
    return int(np.prod(declared(value) or (), dtype=np.int64))


def _has_unknown_dims(model: ir.Model) -> bool:
    facts = Facts(model)
    values = (output for node in model.graph for output in node.outputs if output.name)
    return any(facts.static_shape(value) is None and declared(value) is None for value in values)


def _declared(model: ir.Model) -> list[tuple[int, tuple[int, ...]]]:
    """The outputs whose dims are declared as numbers, by their positions."""
    given = ((number, declared(value)) for number, value in enumerate(model.graph.outputs))
    return [(number, dims) for number, dims in given if dims is not None]


def _probed(model: ir.Model, first: int, step: int) -> tuple[dict[tuple[str, int], int], list[Dims | None]]:
    """Numbers for all places of the inputs, and the dims of outputs that follow."""
    places = [(value.name or "", place) for value in _candidates(model) for place in range(_size(value))]
    numbers = {place: first + step * count for count, place in enumerate(places)}
    contents: dict[str, dict[int, int]] = {}
    for (name, place), number in numbers.items():
        contents.setdefault(name, {})[place] = number
    facts = _supposing(model, contents)
    return numbers, [facts.shape(output) for output in model.graph.outputs]


def _comes_out(number: int, dims: Dims | None, axis: int, rank: int) -> bool:
    return dims is not None and len(dims) == rank and dims[axis] == number


def _holds(model: ir.Model, contents: Contents) -> bool:
    """Whether the dims that follow are those that are declared."""
    facts = _supposing(model, contents)
    return all(facts.static_shape(model.graph.outputs[number]) == dims for number, dims in _declared(model))


def _supposing(model: ir.Model, contents: Contents) -> Facts:
    """What is known of a model whose inputs hold these numbers; others are integers of any sign."""
    facts = Facts(model)
    for value in _candidates(model):
        numbers = contents.get(value.name or "", {})
        held = np.empty(_size(value), object)
        for place in range(held.size):
            held[place] = numbers.get(place, sympy.Symbol(f"?{value.name}[{place}]", integer=True))
        known = facts.known(value)
        facts.set_known(value, Known(known.type, known.shape, held.reshape(declared(value) or ())))
    return facts


def _replace(graph: ir.Graph, facts: Facts, value: ir.Value) -> None:
    """Let readers of a value that is known read a constant."""
    dtype, held = facts.dtype(value), facts.content(value)
    array = None if held is None or dtype is None or facts.is_constant(value) else content.to_array(held, dtype)
    if array is None or dtype is None:
        return
    name = f"{value.name}/content"
    constant = ir.Value(
        name=name, type=ir.TensorType(dtype), shape=ir.Shape(array.shape),
        const_value=constants.to_tensor(array, dtype, name),
    )  # fmt: skip
    graph.register_initializer(constant)
    for use in tuple(value.uses()):
        use.node.replace_input_with(use.idx, constant)

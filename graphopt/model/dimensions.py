"""Fixing and freeing dims of a model's inputs, as its user asks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.model import nodes
from graphopt.model.facts import Facts
from graphopt.model.formulas import formula_at
from graphopt.model.freeing import let_operators_follow, static_shapes
from graphopt.model.text import nearest, shown

DimValue = int | str


def change_dims(model: ir.Model, shapes: Mapping[str, Sequence[int]], values: Mapping[str, DimValue]) -> None:
    """Set the shapes of inputs by name, give symbolic dims a number, or free the fixed leading dim of the inputs.

    `values` maps a symbolic dim to a number; or "batch" (the first dim of every input), or "input:axis", to a new
    name. Declared dims of the outputs follow; value_info that the change makes untrue is dropped.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    renamed: dict[str, DimValue] = {}
    freed: list[tuple[ir.Value, int, str]] = []
    for name, shape in shapes.items():
        _set_shape(inputs, name, shape, renamed)
    for key, size in values.items():
        if isinstance(size, int) or size.isdigit():
            _fix(model, key, int(size), renamed)
        else:
            freed.extend(_places(model, key, size))
    if renamed:
        for value in (*model.graph.inputs, *model.graph.outputs):
            _substitute(value, renamed)
    shapes_before = static_shapes(model) if freed else {}
    for value, axis, symbol in freed:
        assert value.shape is not None, "a place was found in it"
        value.shape = ir.Shape([symbol if position == axis else dim for position, dim in enumerate(value.shape)])
    _drop_value_info(model)
    if freed:
        let_operators_follow(model, shapes_before, {symbol for _, _, symbol in freed})
    elif shapes:
        _follow_outputs(model)


def _set_shape(
    inputs: Mapping[str | None, ir.Value], name: str, shape: Sequence[int], renamed: dict[str, DimValue]
) -> None:
    if not all(isinstance(size, int) for size in shape):
        raise OptionError(f"the shape of '{shown(name)}' is a sequence of sizes such as (1, 64), not {shape!r}.")
    value = inputs.get(name)
    if value is None:
        raise OptionError(f"there is no input '{shown(name)}'; {nearest(name, [one for one in inputs if one])}.")
    if value.shape is not None:
        if len(value.shape) != len(shape):
            raise OptionError(f"input '{name}' has {len(value.shape)} dims, but the shape given has {len(shape)}.")
        for axis, (old, new) in enumerate(zip(value.shape, shape, strict=True)):
            if isinstance(old, int) and old != new:
                raise OptionError(
                    f"dim {axis} of input '{name}' is fixed at {old} in the model, it cannot become {new}; "
                    f"free it first: dims={{'{name}:{axis}': 'N'}}."
                )
            if isinstance(old, ir.SymbolicDim) and old.value is not None and renamed.setdefault(old.value, new) != new:
                raise OptionError(f"dim '{old.value}' cannot be {renamed[old.value]} and {new} at once.")
    value.shape = ir.Shape(list(shape))


def symbols_of(model: ir.Model) -> list[str]:
    """The names of the free dims of inputs, in the order in which they come."""
    found: dict[str, None] = {}
    for value in model.graph.inputs:
        for dim in value.shape or ():
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                found[dim.value] = None
    return list(found)


def _fix(model: ir.Model, name: str, size: int, renamed: dict[str, DimValue]) -> None:
    known = symbols_of(model)
    if name not in known and not name_dim(model, name):
        nameless = next((value.name for value in model.graph.inputs if _has_nameless(value)), None)
        way = "all dims are fixed; dims={'batch': 'N'} frees the first of each input"
        if known:
            way = nearest(name, known)
        elif nameless is not None:
            way = f"those of input '{nameless}' have no names: give it a shape, or '{nameless}:0' a size"
        raise OptionError(f"there is no dynamic dim '{shown(name)}'; {way}.")
    if size < 0:
        raise OptionError(f"dim '{name}' cannot be {size}; sizes start at 0.")
    renamed[name] = size


def name_dim(model: ir.Model, name: str) -> bool:
    """Let a free dim of an input that has no name be called as its user does: INPUT:AXIS, or "batch" for first ones.

    Whether there is such.
    """
    if name == "batch":
        return name_batch(model)
    return any(_name_places(value, (name,)) for value in model.graph.inputs)


def name_batch(model: ir.Model) -> bool:
    """Call the free first dims of inputs that have no name "batch", as scikit-learn's converter leaves them.

    Whether there are such, in a model that has no dim of this name.
    """
    firsts = [value for value in model.graph.inputs if value.shape and _is_nameless(value.shape[0])]
    if "batch" in symbols_of(model) or not firsts:
        return False
    for value in firsts:
        value.shape = ir.Shape(["batch", *list(value.shape or ())[1:]])
    return True


def _has_nameless(value: ir.Value) -> bool:
    return value.shape is not None and any(map(_is_nameless, value.shape))


def _is_nameless(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and dim.value is None


def _substitute(value: ir.Value, renamed: Mapping[str, DimValue]) -> None:
    if value.shape is None:
        return
    numbers = {name: size for name, size in renamed.items() if isinstance(size, int)}
    new: list[int | str | ir.SymbolicDim] = []
    for dim in value.shape:
        if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
            follows = formula_at(dim.value, numbers)  # exporters name a dim "past + 1"
            new.append(renamed.get(dim.value, follows if isinstance(follows, int) and follows >= 0 else dim))
        else:
            new.append(dim)
    value.shape = ir.Shape(new)


def _places(model: ir.Model, key: str, symbol: str) -> list[tuple[ir.Value, int, str]]:
    """Where a fixed dim is to be freed: "batch" is dim 0 of every input, "x:2" is dim 2 of input x."""
    given = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    if ":" in key:
        name, _, axis = key.rpartition(":")
        value = next((value for value in given if value.name == name), None)
        if value is None or value.shape is None or not axis.isdigit() or int(axis) >= len(value.shape):
            raise OptionError(f"'{key}' is not a dim of an input; write INPUT:AXIS=NAME.")
        return [(value, int(axis), symbol)]
    if key != "batch":
        raise OptionError(
            f"'{key}={symbol}' is not understood: give a number for a dynamic dim, or free the fixed first dim of all "
            f"inputs with batch={symbol}, or one dim with INPUT:AXIS={symbol}."
        )
    places = [(value, 0, symbol) for value in given if value.shape is not None and len(value.shape) > 0]
    if not places:
        raise OptionError("no input has a first dim that could be freed.")
    return places


def _drop_value_info(model: ir.Model) -> None:
    """Intermediate shapes were declared for the old dims."""
    for graph in nodes.graphs_of(model):
        for node in graph:
            for output in node.outputs:
                if not output.is_graph_output():
                    output.shape = None


def _follow_outputs(model: ir.Model) -> None:
    """Declare for each output the dims that follow from the new input shapes."""
    facts = Facts(model)
    for value in model.graph.outputs:
        shape = facts.shape(value)
        if shape is not None and value.shape is not None and len(shape) == len(value.shape):
            value.shape = ir.Shape(
                [new if isinstance(new, int) else old for new, old in zip(shape, value.shape, strict=True)]
            )


def name_dims(model: ir.Model, asked: Collection[str] = ()) -> None:
    """Give the inputs' dynamic dims without a name one that can be asked for: INPUT:AXIS.

    First dims become "batch" where that is `asked` for.
    """
    if "batch" in asked:
        name_batch(model)
    for value in model.graph.inputs:
        _name_places(value)


def _name_places(value: ir.Value, asked: Collection[str] | None = None) -> bool:
    """Call the nameless dims of an input INPUT:AXIS, or those alone that are asked for so; whether there are some."""
    places = {axis: f"{value.name}:{axis}" for axis, dim in enumerate(value.shape or ()) if _is_nameless(dim)}
    chosen = {axis: name for axis, name in places.items() if asked is None or name in asked}
    if chosen:
        value.shape = ir.Shape([chosen.get(axis, dim) for axis, dim in enumerate(value.shape or ())])
    return bool(chosen)

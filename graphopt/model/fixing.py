"""Inputs that become constants: defaults that nobody shall override, and values that the caller gives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.model import constants
from graphopt.model.dimensions import change_dims
from graphopt.model.text import nearest, shown

INITIALIZERS_SINCE = 4  # the IR version from which an initializer need not be an input
SHOWN = 6  # numbers of a value in a sentence


def fix_inputs(model: ir.Model, values: Mapping[str, object], *, defaults: bool) -> tuple[str, ...]:
    """Take inputs out of the signature: those of `values` hold these, and with `defaults` all others hold theirs.

    A value is a number, an array, nested lists, or texts that spell these; the model says of which type. Returns a
    sentence for each input. Raises OptionError for a name that is no input, and for a value that does not fit the
    input's type or dims.
    """
    arrays = {name: _array(model, name, value) for name, value in values.items()}
    shapes = {name: array.shape for name, array in arrays.items() if not _declares(_input(model, name), array)}
    if shapes:
        change_dims(model, shapes, {})
    constants.freeze_old_initializers(model)  # which a newer version would turn into mere defaults
    done = {}
    for name, array in arrays.items():
        value = _input(model, name)
        assert value.dtype is not None, "its type was looked at"
        value.const_value = constants.to_tensor(array, value.dtype, name)
        model.graph.initializers[name] = value
        done[name] = f"input '{shown(name)}' is fixed at {_short(array)}"
    for value in model.graph.inputs:
        if defaults and value.is_initializer():
            done.setdefault(value.name or "", f"input '{shown(value.name or '')}' is fixed at its default")
    if done:
        kept = [value for value in model.graph.inputs if value.name not in done]
        model.graph.inputs.clear()
        model.graph.inputs.extend(kept)
        if model.ir_version is not None and model.ir_version < INITIALIZERS_SINCE:
            model.ir_version = INITIALIZERS_SINCE
    return tuple(done.values())


def _input(model: ir.Model, name: str) -> ir.Value:
    value = next((value for value in model.graph.inputs if value.name == name), None)
    if value is None:
        known = [value.name for value in model.graph.inputs if value.name]
        raise OptionError(f"there is no input '{shown(name)}' to fix; {nearest(name, known)}.")
    return value


def _declares(value: ir.Value, array: np.ndarray) -> bool:
    """Whether the input declares just the dims that the array has."""
    return value.shape is not None and tuple(value.shape) == array.shape


def _array(model: ir.Model, name: str, given: object) -> np.ndarray:
    """The value in the type and the dims of the input."""
    value = _input(model, name)
    dtype = value.dtype
    if not isinstance(value.type, ir.TensorType) or dtype is None:
        raise OptionError(f"input '{shown(name)}' is not a tensor ({value.type}), so it cannot be fixed at a value.")
    try:
        array = np.asarray(given)
    except ValueError:
        raise OptionError(f"the lists given for input '{shown(name)}' are of different lengths.") from None
    return _in_dims(_in_type(array, dtype, name), value, name)


def _in_type(array: np.ndarray, dtype: ir.DataType, name: str) -> np.ndarray:
    """The same numbers or texts in the model's type; raises OptionError where it does not hold them."""
    flat = array.reshape(-1).tolist()
    texts = bool(flat) and all(isinstance(one, str) for one in flat)
    if dtype == ir.DataType.STRING:
        if not texts and flat:
            raise OptionError(f"input '{shown(name)}' takes texts, and {_short(array)} was given.")
        return array.astype(object)
    try:
        given = np.asarray([_number(one) for one in flat]).reshape(array.shape) if texts else array
        with np.errstate(all="ignore"):
            converted = given.astype(dtype.numpy())
        wide = converted.astype(np.float64)
        if dtype.is_floating_point():
            held = bool((np.isfinite(wide) == np.isfinite(given.astype(np.float64))).all())
        else:
            held = bool((wide == given.astype(np.float64)).all())
    except (TypeError, ValueError, OverflowError):
        held = False
    if not held:
        raise OptionError(f"input '{shown(name)}' takes numbers of type {dtype.name}, and {_short(array)} is not such.")
    return converted


def _number(text: str) -> bool | int | float:
    """The number that a text spells; raises ValueError where it spells none."""
    truth = {"true": True, "false": False}.get(text.lower())
    if truth is not None:
        return truth
    try:
        return int(text)
    except ValueError:
        return float(text)


def _in_dims(array: np.ndarray, value: ir.Value, name: str) -> np.ndarray:
    """A number or a list takes the dims that the input declares, where only one way is possible."""
    if value.shape is None or array.ndim == len(value.shape):
        return array  # dims that are declared otherwise are refused with all others
    free = [axis for axis, dim in enumerate(value.shape) if not isinstance(dim, int)]
    sizes = [dim if isinstance(dim, int) else 1 for dim in value.shape]
    if array.ndim <= 1 and len(free) == 1:
        sizes[free[0]] = array.size // max(int(np.prod(sizes)), 1)
    if array.ndim > 1 or int(np.prod(sizes)) != array.size:
        dims = ", ".join("?" if axis in free else str(size) for axis, size in enumerate(sizes))
        raise OptionError(
            f"input '{shown(name)}' has the dims [{dims}], and a value of {array.size} elements was given for it."
        )
    return array.reshape(sizes)


def _short(array: np.ndarray) -> str:
    """The value in a sentence."""
    flat = [str(one) for one in array.reshape(-1)[:SHOWN]]
    if array.size == 1:
        return flat[0]
    return f"[{', '.join(flat)}{', ...' if array.size > SHOWN else ''}]"

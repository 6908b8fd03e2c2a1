"""Seeded values for a model's inputs, drawn in several ways, to reach together what an ordinary draw does not.

One draw is a plain normal one. The others have zeros, halves (ties), magnitudes that clip and saturate, values on both
sides of the model's own constants, nearly constant rows, rows of a mask that are shut, infinities and NaN; integers
follow their use (check.uses). All of it depends on the model alone, never on what it is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import onnx

from graphopt.check.inputs import MOST_OVERRIDDEN, Input
from graphopt.check.uses import LONGEST
from graphopt.model.formulas import dim_at
from graphopt.model.limits import MOST_FED

Feed = dict[str, object]
Contents = Mapping[str, Mapping[int, int]]  # by input: numbers that are known, by their places in the flat tensor
NOTHING: Contents = {}
Draw = Literal["normal", "wild", "grid", "large", "flat", "special", "unit", "positive", "ones", "zeros", "tiny"]
DRAWS: tuple[Draw, ...] = get_args(Draw)
# Draws with values that stand on ties and edges on purpose: moving them by a unit is no rounding.
EXACT: frozenset[Draw] = frozenset({"grid", "special", "zeros"})
COUNT: Mapping[Draw, int] = {
    "normal": 1, "wild": 3, "grid": 2, "large": 5, "flat": 4, "special": 7, "unit": 1, "positive": 2, "ones": 1,
    "zeros": 0, "tiny": 2,
}  # fmt: skip
# By what the sizes of an image change; parts of elements tell modes of rounding and of coordinates apart.
FACTOR: Mapping[Draw, float] = {
    "wild": 2,
    "grid": 0.5,
    "large": 2,
    "flat": 1.5,
    "special": 0.6,
    "unit": 0.8,
    "tiny": 2.6,
}
COUNTS = (2, 3)  # to try where a model refuses the count of a draw
LAST_COUNTS = (-1, 0)  # at last: an axis may be such, and with a number of trips nothing is computed
SPECIALS = (np.nan, np.inf, -np.inf, -0.0)
FEW = 64  # values of an input
ROOTED: tuple[Draw, ...] = ("normal", "large", "flat", "tiny")  # draws that give a root no negative numbers
MOVING: tuple[Draw, ...] = ("wild", "grid", "unit")  # draws that move inputs with defaults
HUGE = {8: 1 << 40, 4: 1 << 30, 2: 1 << 14, 1: 1 << 6}  # integers by the bytes of their type


def make_feed(inputs: tuple[Input, ...], sizes: Mapping[str, int], draw: Draw, count: int | None = None) -> Feed:
    """Values for all inputs; those with a default keep it in plain draws and are moved near it in the others.

    `count` is for the inputs that are sizes, lengths or axes, in place of the draw's own; images then keep their sizes.
    Raises ValueError for inputs
    of more than `MOST_FED` elements.
    """
    elements = sum(math.prod(_shape(item, sizes)) for item in inputs if item.default is None)
    if elements > MOST_FED:
        raise ValueError(f"its inputs have {elements:,} elements, and {MOST_FED:,} are the most that is tried")
    generator = np.random.default_rng([20261, DRAWS.index(draw)])
    sizes = {**sizes, LONGEST: max((max(_shape(item, sizes), default=1) for item in inputs), default=1)}
    feed: Feed = {}
    for item in inputs:
        if item.default is None:
            feed[item.name] = _value(item, item.type, sizes, draw, count, generator)
        elif item.required and (draw not in MOVING or item.default.size > MOST_OVERRIDDEN):
            feed[item.name] = item.default
        elif draw in MOVING:
            feed[item.name] = _near(item.default, draw, generator)
    return feed


def may_be_mask(value: object) -> bool:
    """Whether a fed value has rows of zeros and ones."""
    array = value if isinstance(value, np.ndarray) else None
    if array is None or array.ndim < 2 or array.size == 0 or array.dtype.kind not in "bi":
        return False
    return array.dtype.kind == "b" or bool(((array == 0) | (array == 1)).all())


def holding(feed: Feed, contents: Contents) -> Feed:
    """A feed with these numbers in their places."""
    changed = dict(feed)
    for name, numbers in contents.items():
        array = np.array(feed[name])
        array.reshape(-1)[list(numbers)] = list(numbers.values())
        changed[name] = array
    return changed


def _near(default: np.ndarray, draw: Draw, generator: np.random.Generator) -> np.ndarray:
    """Another value for an input with a default: near it, so that what must be positive or fit stays so."""
    if default.dtype.kind == "b":
        return np.asarray(~default)
    if default.dtype.kind in "iu":
        if default.size > 1:  # dims, or a permutation
            return default[::-1].copy()
        return np.asarray(default + 1 if draw == "wild" else np.maximum(default, 1) - 1, default.dtype)
    if default.dtype.kind in "OSUc":
        return default
    moved = default * (1 + 0.2 * generator.random(default.shape)) + 0.01 * generator.random(default.shape)
    return np.asarray(moved).astype(default.dtype)


def _shape(item: Input, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in item.dims or ())


def _value(
    item: Input, kind: onnx.TypeProto, sizes: Mapping[str, int], draw: Draw, count: int | None,
    generator: np.random.Generator,
) -> object:  # fmt: skip
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        length = {"wild": 3, "grid": 1}.get(draw, 2)
        return [_value(item, kind.sequence_type.elem_type, sizes, draw, count, generator) for _ in range(length)]
    if which == "optional_type":
        return _value(item, kind.optional_type.elem_type, sizes, draw, count, generator)
    if which != "tensor_type":
        raise ValueError(f"input '{item.name}' is a map, for which there are no seeded feeds")
    shape = _shape(item, sizes)
    element = kind.tensor_type.elem_type
    if element == onnx.TensorProto.STRING:
        return generator.choice(np.array(item.strings, dtype=object), shape)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element)
    if element == onnx.TensorProto.BOOL:
        return _bools(shape, draw, generator)
    if item.use.lengths and np.issubdtype(dtype, np.integer) and item.use.bound is None and not item.use.counts:
        told = (dim_at(length, sizes) for length in item.use.lengths)
        most = max((length for length in told if isinstance(length, int)), default=1)
        return _lengths(shape, most, draw, generator).astype(dtype)
    if item.use.indexes and not np.issubdtype(dtype, np.complexfloating):
        signed = not np.issubdtype(dtype, np.unsignedinteger)
        indices = _indices(shape, item.use.bound or 2, draw, generator, signed)
        return _among(indices, item.use.exceptions, draw, generator).astype(dtype)
    if item.use.factors and not np.issubdtype(dtype, np.complexfloating):
        if np.issubdtype(dtype, np.integer):
            return np.full(shape, 2 if draw in ("wild", "large") else 1).astype(dtype)
        return np.asarray(_factors(math.prod(shape), draw if count is None else "ones").reshape(shape)).astype(dtype)
    if item.use.resized is not None and shape == (len(item.use.resized),):
        now = np.array([dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in item.use.resized])
        return np.asarray(np.maximum(np.round(now * _factors(len(now), draw if count is None else "ones")), 1), dtype)
    if item.use.axes and np.issubdtype(dtype, np.integer):
        axes = np.arange(math.prod(shape)).reshape(shape)
        return (-1 - axes if draw in ("wild", "large") else axes).astype(dtype)
    if item.use.steps and np.issubdtype(dtype, np.integer):
        return np.full(shape, {"wild": 2, "grid": -1}.get(draw, 1)).astype(dtype)
    if item.use.starts and np.issubdtype(dtype, np.integer):
        return np.full(shape, {"wild": 1, "grid": -1, "large": 2}.get(draw, 0)).astype(dtype)
    if item.use.counts and not np.issubdtype(dtype, np.complexfloating):
        return np.full(shape, COUNT[draw] if count is None else count).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        return _integers(shape, dtype, sorted(item.use.constants), draw, generator)
    if np.issubdtype(dtype, np.complexfloating):
        parts = [_floats(shape, [], draw, generator) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(dtype)
    if item.use.boxes and shape[-1:] == (4,) and draw not in ("normal", "special"):
        return _boxes(shape, draw, generator).astype(dtype)
    with np.errstate(over="ignore"):
        values = _floats(shape, sorted(item.use.constants), draw, generator).astype(dtype)
    return np.abs(values) if item.use.roots and draw in ROOTED else values


def _factors(count: int, draw: Draw) -> np.ndarray:
    """Factors of the sizes of an image, whose first two dims often must stay as they are."""
    factors = np.full(count, float(FACTOR.get(draw, 1)))
    if count > 2 and draw != "large":
        factors[:2] = 1
    return factors


def _boxes(shape: tuple[int, ...], draw: Draw, generator: np.random.Generator) -> np.ndarray:
    """Boxes that overlap more or less: beginnings and ends, or centers and extents, near those of a few."""
    spread = {"wild": 0.3, "grid": 0.15, "tiny": 0.05}.get(draw, 0.6)
    first = np.array([0.0, 0.0, 1.0, 1.0]) + generator.integers(0, 2, (*shape[:-1], 1))
    return np.asarray(first + spread * generator.uniform(-1.0, 1.0, shape))


def _rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one value for each row."""
    return (*shape[:-1], 1) if shape else ()


def _floats(shape: tuple[int, ...], constants: list[float], draw: Draw, generator: np.random.Generator) -> np.ndarray:
    if draw == "ones":
        return np.ones(shape)
    if draw == "zeros":
        return np.zeros(shape)
    if draw == "positive":
        return generator.uniform(0.5, 1.5, shape)
    if draw == "unit":
        return generator.uniform(0.0, 1.0, shape)
    normal = np.asarray(generator.standard_normal(shape))
    if draw == "normal":
        return normal
    if draw == "tiny":  # beside the epsilons of normalizations
        return np.asarray(normal * generator.choice([1e-2, 1e-3, 1e-4], (*shape[:1], *(1,) * (len(shape) - 1))))
    if draw == "large":  # float32 overflows in Exp and in powers here, float64 does not
        return np.clip(normal * 200.0, -600.0, 600.0)
    halves = generator.integers(-8, 9, shape) / 2.0
    if draw == "flat":
        base = generator.choice([0.0, 1.0, -3.0], _rows(shape))
        spread = generator.choice([0.0, 1e-3, 1e-4], _rows(shape))
        return np.asarray(base + spread * normal)
    where = generator.random(shape)
    if draw == "grid":
        return np.where(where < 0.1, 0.0, halves)
    if draw == "special":
        return _with_specials(halves, generator)
    scaled = normal * generator.choice([0.01, 0.3, 1.0, 1.0, 3.0, 30.0], _rows(shape))
    near = generator.choice([0.0, *constants], shape)
    near = near + generator.choice([-1.0, -0.1, 0.0, 0.1, 1.0], shape) * np.maximum(0.25, np.abs(near) / 16)
    share = 0.3 if normal.size > FEW else 0.6  # of few values more are near the constants
    return np.select([where < 0.05, where < 0.15, where < share], [np.zeros(shape), halves, near], scaled)


def _with_specials(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """NaN, infinities and a negative zero in half of the rows; the others tell a fault from a model that is all NaN."""
    length = values.shape[-1] if values.ndim > 1 else values.size
    rows = generator.permutation(values.size // max(length, 1))
    chosen = rows[: (len(rows) + 1) // 2] if values.ndim > 1 else rows
    places = (chosen[:, None] * length + np.arange(length)).reshape(-1)
    places = generator.permutation(places)
    flat = values.reshape(-1).copy()
    each = max(len(places) // 16, 1)
    for number, special in enumerate(SPECIALS):
        flat[places[number * each : (number + 1) * each]] = special
    return flat.reshape(values.shape)


def _integers(
    shape: tuple[int, ...], dtype: np.dtype, constants: list[float], draw: Draw, generator: np.random.Generator
) -> np.ndarray:
    info = np.iinfo(dtype)
    if draw in ("ones", "zeros"):
        return np.full(shape, draw == "ones", dtype)
    if dtype.itemsize == 1 and draw != "flat":
        return generator.integers(info.min, info.max + 1, shape).astype(dtype)
    if draw in ("normal", "unit", "positive", "flat", "tiny"):
        return _bools(shape, draw, generator).astype(dtype)
    small = generator.integers(-9, 100, shape) if draw == "wild" else generator.integers(-3, 6, shape)
    if draw == "large":
        huge = HUGE[dtype.itemsize]
        small = np.where(generator.random(shape) < 0.5, generator.integers(-huge, huge, shape), small)
    near = [int(number) for number in constants if float(number).is_integer() and abs(number) < 2**31]
    if near:
        close = generator.choice(np.array(near, np.int64), shape) + generator.integers(-1, 2, shape)
        small = np.where(generator.random(shape) < 0.4, close, small)
    return np.clip(np.abs(small) if info.min == 0 else small, info.min, info.max).astype(dtype)


def _lengths(shape: tuple[int, ...], most: int, draw: Draw, generator: np.random.Generator) -> np.ndarray:
    """How many places count: all in the first row of plain draws, some in the others; of one, of none, of more."""
    if draw in ("ones", "zeros"):
        return np.full(shape, draw == "ones")
    lengths = generator.integers(most // 2 if draw in ("normal", "unit", "positive") else 0, most + 1, shape)
    if draw in ("normal", "large", "special") and lengths.size:
        lengths.reshape(-1)[0] = most
    return lengths + (draw == "large")


def _indices(
    shape: tuple[int, ...], bound: int, draw: Draw, generator: np.random.Generator, signed: bool
) -> np.ndarray:
    count = math.prod(shape)
    along, many = np.arange(count).reshape(shape), max(bound, 1)
    if draw == "zeros":  # and, in a longer table, the next two: rows that are all one tell little of scales
        return along // 2 % 3 if many > 2 else np.zeros(shape)
    if draw in ("ones", "large"):  # from the front and from the end
        return (1 + along) % many if draw == "ones" else (many - 1 - along) % many
    if draw in ("grid", "unit") and count:  # evenly over the table, so that short tables are read whole
        start = 0 if draw == "grid" else bound // 2
        step = max(bound // count, 1)
        return ((start + np.arange(count) * step) % bound).reshape(shape)
    low = -bound if draw == "wild" and signed else 0
    return generator.integers(low, bound, shape)


def _among(indices: np.ndarray, exceptions: set[int], draw: Draw, generator: np.random.Generator) -> np.ndarray:
    """Indices with a few that the model takes for none, as the class to ignore."""
    if not exceptions or draw not in ("wild", "grid", "unit"):
        return indices
    return np.where(generator.random(indices.shape) < 0.3, generator.choice(sorted(exceptions), indices.shape), indices)


def _bools(shape: tuple[int, ...], draw: Draw, generator: np.random.Generator) -> np.ndarray:
    """Random; plain draws leave no row of a mask shut, flat ones shut about half of them."""
    if draw in ("ones", "zeros"):
        return np.full(shape, draw == "ones")
    if not shape:
        return np.array(draw in ("normal", "grid", "positive", "special"))
    values = generator.integers(0, 2, shape).astype(bool)
    if draw == "grid" and len(shape) > 1:
        return np.broadcast_to(np.tri(shape[-2], shape[-1]) > 0, shape).copy()
    if draw in ("normal", "unit", "positive") and shape[-1]:
        values[..., 0] = True
    if draw == "flat":
        values &= generator.integers(0, 2, _rows(shape)).astype(bool)
        if len(shape) > 1 and values.size:
            values.reshape(-1, shape[-1])[0] = False
    return values

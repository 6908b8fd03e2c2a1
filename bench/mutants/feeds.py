"""Many inputs for one model, made to show what a change does: sizes, magnitudes, ties, integers, special values.

Every kind of floats is tried with several sizes of the dynamic dims and several kinds of integers, until the original
accepts one. `hints` are numbers that a change has to do with, such as a bound or the row of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.mutants.sources import Feed, Source

PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
WORDS = np.array(["to", "be", "or", "not", "question"], dtype=object)
INTEGERS = ("table", "ten", "two", "one", "signed", "zero", "big", "recorded")
KINDS = (
    "recorded", "plain", "large", "positive", "ties", "zeros", "specials", "plain again", "huge", "flat rows",
    "tiny", "ones", "defaults", "negative", "mixed",
)  # fmt: skip
STEADY = frozenset({"recorded", "ties", "zeros", "ones"})  # moving these by a rounding would take away what they show
MOST_TRIES = 6  # draws of integers for one kind and one plan
Dims = dict[str, int]


@dataclass(frozen=True, slots=True)
class Shown:
    """An input that the original accepts, and its results."""

    kind: str
    feed: Feed
    results: list[object]


def shown(
    source: Source, run: Callable[[Feed], list[object] | None], seed: int, hints: Sequence[float] = ()
) -> Iterator[Shown]:
    """Accepted inputs with the original's results; with `hints`, only those that are drawn around them."""
    rng = np.random.default_rng([seed, len(hints)])
    plans = list(_plans(source))
    kinds = ("hinted", "hinted again") if hints else KINDS
    given = 0
    for place, kind in enumerate(kinds):
        wanted = min(len(plans), source.most_feeds // 3) if kind == "plain" else 1
        for plan in plans[place % len(plans) :] + plans[: place % len(plans)]:
            if wanted == 0 or given >= source.most_feeds:
                break
            for attempt in range(MOST_TRIES):
                feed = _feed(source, kind, plan, attempt, hints, rng)
                results = run(feed) if feed is not None else None
                if feed is not None and results is not None:
                    yield Shown(kind, feed, results)
                    given, wanted = given + 1, wanted - 1
                    break


def freely(source: Source, run: Callable[[Feed], list[object] | None]) -> bool:
    """Whether every symbol of the inputs may be one larger than it is known to be, each alone."""
    rng = np.random.default_rng(7)
    return all(
        any(
            (feed := _feed(source, "plain", {**source.sizes, name: size + 1}, attempt, (), rng)) is not None
            and run(feed) is not None
            for attempt in range(MOST_TRIES)
        )
        for name, size in source.sizes.items()
    )


def moved(feed: Feed, seed: int) -> Feed:
    """The feed, with its floats moved by a unit in the last place."""
    rng = np.random.default_rng([seed, 5])
    found: Feed = {}
    for name, value in feed.items():
        found[name] = value
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            step = np.where(rng.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
            found[name] = np.asarray(np.nextafter(value, step)) if value.size else value
            found[name] = np.where(np.isfinite(value) & (value != 0), found[name], value).astype(value.dtype)
    return found


def _plans(source: Source) -> Iterator[Dims]:
    """Sizes of the dynamic dims: those of the zoo, each its own prime, all alike, one, and longer ones."""
    names: dict[str, bool] = {}
    for value in source.model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            if not dim.dim_value:
                image = axis >= 2 and len(dims) >= 4
                names[dim.dim_param or f"{value.name}.{axis}"] = image
    if not names:
        yield {}
        return
    if source.sizes:
        known = {name: source.sizes.get(name, 1) for name in names}
        yield known
        for name in list(names)[:6]:
            for size in (known[name] + 1, 9, 1, 17) if source.recorded else (known[name] + 1, 1):
                yield {**known, name: size}
    yield {name: 32 * (place + 1) if image else PRIMES[place % 10] for place, (name, image) in enumerate(names.items())}
    for size in (1, 2, 5, 9, 17, 33) if source.recorded or not source.sizes else ():
        yield {name: 32 * min(size, 3) if image else size for name, image in names.items()}
    if source.recorded or not source.sizes:
        yield {name: PRIMES[-1 - place % 10] for place, name in enumerate(names)}


def _feed(
    source: Source, kind: str, plan: Dims, attempt: int, hints: Sequence[float], rng: np.random.Generator
) -> Feed | None:
    recorded = source.recorded[attempt % len(source.recorded)] if source.recorded else {}
    if kind == "recorded":
        return dict(recorded) if recorded and attempt < len(source.recorded) else None
    graph = source.model.graph
    defaults = {tensor.name: tensor for tensor in graph.initializer}
    feed: Feed = {}
    if kind == "defaults":
        own = [value.name for value in graph.input if value.name in defaults]
        if not own:
            return None
    for value in graph.input:
        if value.name in defaults:
            if kind == "defaults":
                array = onnx.numpy_helper.to_array(defaults[value.name])
                floats = array.dtype.kind == "f"
                feed[value.name] = (array * 1.5 + 0.25).astype(array.dtype) if floats else array
            continue
        base = recorded.get(value.name)
        if base is not None and not isinstance(base, np.ndarray):
            feed[value.name] = base  # a sequence, or nothing
            continue
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or tensor.elem_type == TensorProto.UNDEFINED:
            if value.name not in recorded:
                return None
            feed[value.name] = base
            continue
        free = value.type.HasField("tensor_type") and any(dim.dim_param for dim in tensor.shape.dim)
        shape = base.shape if base is not None and not free else _shape(value, plan)
        if base is not None and base.shape != shape:
            base = None
        drawn = _values(source, value, base, shape, kind, attempt, hints, rng)
        if drawn is None:
            return None
        feed[value.name] = drawn
    return feed


def _shape(value: onnx.ValueInfoProto, plan: Dims) -> tuple[int, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value or plan[dim.dim_param or f"{value.name}.{axis}"] for axis, dim in enumerate(dims))


def _values(
    source: Source, value: onnx.ValueInfoProto, base: np.ndarray | None, shape: tuple[int, ...], kind: str,
    attempt: int, hints: Sequence[float], rng: np.random.Generator,
) -> np.ndarray | None:  # fmt: skip
    code = value.type.tensor_type.elem_type
    if code == TensorProto.STRING:
        return base if base is not None else rng.choice(WORDS, size=shape)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < rng.choice((0.0, 0.5, 0.5, 1.0)))
    if dtype.kind in "iu":
        return _integers(source, value.name, base, shape, dtype, attempt, hints, rng)
    if dtype.kind != "f":
        return base  # complex and narrow types: what was recorded, or nothing
    return _floats(kind, shape, hints, rng).astype(dtype)


def _floats(kind: str, shape: tuple[int, ...], hints: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    normal = np.asarray(rng.standard_normal(shape))
    with np.errstate(all="ignore"):
        match kind:
            case "large":
                return normal * 100
            case "huge":
                return normal * 1e4
            case "tiny":
                return normal * 1e-4
            case "positive":
                return np.asarray(rng.uniform(0.1, 1.5, shape))
            case "negative":
                return -np.abs(normal) * 3
            case "ties":
                return np.asarray(rng.integers(-6, 7, shape)) / 2
            case "zeros":
                return normal * 0
            case "ones":
                return normal * 0 + 1
            case "flat rows":  # nearly constant along the last axis
                return np.asarray(rng.standard_normal((*shape[:-1], 1)) if shape else 1.0) + normal * 1e-3
            case "mixed":  # magnitudes from a thousandth to a thousand
                return normal * 10.0 ** np.asarray(rng.integers(-3, 4, shape))
            case "specials":
                special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape)
                return np.where(rng.random(shape) < 0.15, special, normal)
            case "hinted" | "hinted again":
                scale = abs(float(rng.choice(list(hints)))) or 1.0
                exact = rng.choice([*hints, *(-hint for hint in hints)], shape)
                return np.where(rng.random(shape) < 0.1, exact, normal * scale * 1.5)
            case _:
                return normal


def _integers(
    source: Source, name: str, base: np.ndarray | None, shape: tuple[int, ...], dtype: np.dtype, attempt: int,
    hints: Sequence[float], rng: np.random.Generator,
) -> np.ndarray | None:  # fmt: skip
    """The likeliest kinds first, then any mixture; where values were recorded, they are often the only ones."""
    style = str(rng.choice(INTEGERS)) if attempt % 2 else ("table", "ten", "one")[attempt // 2 % 3]
    if base is not None and rng.random() < 0.6:
        style = "recorded"
    limits = np.iinfo(dtype)
    match style:
        case "recorded":
            if base is None:
                return None
            return base if rng.random() < 0.7 or base.size < 2 else rng.permutation(base.ravel()).reshape(shape)
        case "table":
            low, high = 0, _table(source, name)
        case "ten":
            low, high = 0, 10
        case "two":
            low, high = 0, 2
        case "one":
            low, high = 1, 2
        case "signed":
            low, high = -9, 100
        case "big":
            most = 1 if source.endless else 1 << 40
            low, high = -most, most
        case _:
            low, high = 0, 1
    low, high = max(low, int(limits.min)), min(high, int(limits.max))
    drawn = np.asarray(rng.integers(low, high, shape))
    ids = [int(hint) for hint in hints if low <= hint < high and hint == int(hint)]
    if ids:
        drawn = np.where(rng.random(shape) < 0.3, rng.choice(ids, shape), drawn)
    return drawn.astype(dtype)


def _table(source: Source, name: str) -> int:
    """Rows of the table that the input indexes, itself or through operators that keep its values; else a hundred."""
    dims: dict[str, tuple[int, ...]] = {tensor.name: tuple(tensor.dims) for tensor in source.model.graph.initializer}
    same = {name}
    for node in source.model.graph.node:
        if node.op_type == "Gather" and node.input[1] in same and len(dims.get(node.input[0], ())) == 2:
            return dims[node.input[0]][0]
        if node.op_type in ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten") and node.input[0] in same:
            same.add(node.output[0])
    return 100

"""Discrete Fourier transforms of every length, and what is made of them.

Stockham's transform in mixed radix (the sorting happens in each step, so that no bits are reversed): a length of n with
the prime factors p takes n times their sum. It computes in f64. The order of loops follows Takahashi, "Fast Fourier
Transform Algorithms for Parallel Computers" (2019), section 2.4, for any radix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import cos, pi, prod, sin

import numpy as np

from graphopt.program.regions.routines.stage import Defined, Definition, Stage, counted
from kernels.dtype import DType
from kernels.routine.writer import (
    Grid,
    as_type,
    both,
    either,
    eq,
    ge,
    gt,
    le,
    lt,
    maximum,
    minimum,
    number,
    pick,
    remainder,
)
from kernels.tensor.expression import Expression, Unary

F64, I64 = DType.F64, DType.I64
UNROLLED = (4, 2, 3, 5, 7)  # radices whose steps are written out
Complex = tuple[Expression, Expression]
Load = Callable[[Expression], Complex]
Store = Callable[[Expression, Complex], None]


class Transform:
    """A transform of one length: its table of roots, and scratch for two lines."""

    def __init__(self, node: Defined, w: Stage, length: int, *, inverse: bool) -> None:
        self._w, self._length, self._sign = w, length, 1 if inverse else -1
        angles = np.arange(max(length, 1)) * (2 * pi / max(length, 1))
        roots = np.concatenate([np.cos(angles), self._sign * np.sin(angles)])
        self._roots = w.reads(node.table(roots))
        self._lines = [w.scratch(F64, (2, max(length, 1))) for _ in range(2)]

    def run(self, load: Load) -> Grid:
        """Transform what `load` gives; the result's [real or imaginary, element]."""
        w, length = self._w, self._length
        source, aim = self._lines
        with w.loop(length) as at:
            source[0, at], source[1, at] = load(at)
        rest, stride = length, 1
        for radix in factors(length):
            self._step(source, aim, rest, stride, radix)
            rest, stride = rest // radix, stride * radix
            source, aim = aim, source
        return source

    def _step(self, x: Grid, y: Grid, rest: int, stride: int, radix: int) -> None:
        """Transforms of `radix` elements, each a part of the line away from the next."""
        w, each = self._w, rest // radix
        with w.loop(each) as part:
            if radix in UNROLLED:
                turns = [self._root(part * (number_of * stride)) for number_of in range(radix)]
                with w.loop(stride) as q:
                    given = [self._element(x, q + (part + r * each) * stride) for r in range(radix)]
                    for row, turn in enumerate(turns):
                        found = _sum([_times(one, self._constant(row * r, radix)) for r, one in enumerate(given)])
                        self._keep(y, q + (part * radix + row) * stride, _product(found, turn) if row else found)
                return
            with w.loop(radix) as j:
                with w.loop(stride) as q:
                    self._keep(y, q + (part * radix + j) * stride, (number(0, F64), number(0, F64)))
                with w.loop(radix) as r:
                    around = remainder(j * r * (self._length // radix) + j * part * stride, self._length)
                    turn = self._root(around)
                    with w.loop(stride) as q:
                        place = w.local(I64, q + (part * radix + j) * stride)
                        one = _product(self._element(x, q + (part + r * each) * stride), turn)
                        self._keep(y, place, (y[0, place] + one[0], y[1, place] + one[1]))

    def _element(self, x: Grid, place: Expression) -> Complex:
        at = self._w.local(I64, place)
        return self._w.local(F64, x[0, at]), self._w.local(F64, x[1, at])

    def _keep(self, y: Grid, place: Expression, value: Complex) -> None:
        at = self._w.local(I64, place)
        y[0, at] = value[0]
        y[1, at] = value[1]

    def _root(self, number_of: Expression) -> Complex:
        at = self._w.local(I64, number_of)
        return self._w.local(F64, self._roots.at(at)), self._w.local(F64, self._roots.at(at + self._length))

    def _constant(self, turns: int, radix: int) -> tuple[float, float]:
        """The root of a radix, its zeros and ones exact."""
        angle = 2 * pi * (turns % radix) / radix
        real, imaginary = cos(angle), self._sign * sin(angle)
        return _exact(real), _exact(imaginary)


def factors(length: int) -> list[int]:
    """The radices of a length: fours first, then primes."""
    found, rest = [], length
    for radix in (4, 2, 3, 5, 7):
        while rest % radix == 0 and rest > 1:
            found.append(radix)
            rest //= radix
    prime = 11
    while rest > 1:
        if prime * prime > rest:
            prime = rest
        while rest % prime == 0 and rest > 1:
            found.append(prime)
            rest //= prime
        prime += 2
    return found


def _product(a: Complex, b: Complex) -> Complex:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _times(a: Complex, b: tuple[float, float]) -> Complex:
    """A product with a constant, without those by 0 and 1."""
    match b:
        case (1.0, 0.0):
            return a
        case (-1.0, 0.0):
            return -a[0], -a[1]
        case (0.0, 1.0):
            return -a[1], a[0]
        case (0.0, -1.0):
            return a[1], -a[0]
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _sum(terms: Sequence[Complex]) -> Complex:
    real, imaginary = terms[0]
    for one in terms[1:]:
        real, imaginary = real + one[0], imaginary + one[1]
    return real, imaginary


def dft(node: Defined) -> None:
    """A transform along one axis, whose number may be known only at run time, as may be the length."""
    shape, result = node.shape(0), node.output_shape(0)
    rank, by_input = len(shape), node.opset >= 20
    given = node.constant(2) if by_input else None
    known = None if by_input and node.has(2) and given is None else int(node.integer("axis", 1))
    if by_input and known is not None:
        known = -2 if given is None else int(given.reshape(-1)[0])
    for axis in range(rank - 1) if known is None else (known % rank,):
        if all(shape[at] == result[at] for at in range(rank - 1) if at != axis):
            _along(node, axis, None if known is not None else 2)


def _along(node: Defined, axis: int, chooser: int | None) -> None:
    """The transform of one axis; with a chooser only where that input names this axis."""
    shape, result = node.shape(0), node.output_shape(0)
    inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
    to_real = inverse and onesided
    size, length = shape[axis], node.constant(1)
    usual = 2 * (size - 1) if to_real else size
    if not onesided or to_real:
        lengths = [result[axis]]
    elif length is not None or not node.has(1):
        lengths = [usual if length is None else int(length.reshape(-1)[0])]
    else:  # as many elements are left of an even length as of the odd one behind it
        lengths = [2 * (result[axis] - 1), 2 * (result[axis] - 1) + 1]
    for count in lengths:
        if count >= 1:
            _of_length(node, axis, chooser, count, is_asked=len(lengths) > 1)


def _of_length(node: Defined, axis: int, chooser: int | None, count: int, *, is_asked: bool) -> None:
    """The transform of `count` elements, where it is asked whether the length is that one."""
    shape, result = node.shape(0), node.output_shape(0)
    inverse, to_real = (
        bool(node.integer("inverse", 0)),
        bool(node.integer("inverse", 0) and node.integer("onesided", 0)),
    )
    size, outer, inner, parts = shape[axis], prod(shape[:axis]), prod(shape[axis + 1 : -1]), shape[-1]
    with node.stage() as w:
        x, y = w.reads(node.input(0)), w.writes(node.output(0))
        conditions = [eq(as_type(w.reads(node.input(1)).at(0), I64), count)] if is_asked else []
        if chooser is not None:
            conditions.append(eq(counted(w.reads(node.input(chooser)).at(0), len(shape)), axis))
        transform = Transform(node, w, count, inverse=inverse)
        with w.shared(outer, inner) as (row, column), w.when(_all(conditions)):

            def element(at: Expression) -> Complex:
                """An element of the line, 0 behind its end; of half a spectrum the other half is mirrored."""
                source = pick(gt(at, count // 2), count - at, at) if to_real else at
                place = (row * size + minimum(source, max(size - 1, 0))) * inner + column
                inside = lt(source, size)
                real = pick(inside, as_type(x.at(place * parts), F64), 0)
                if parts == 1:
                    return real, number(0, F64)
                imaginary = pick(inside, as_type(x.at(place * parts + 1), F64), 0)
                if to_real:  # what would make the line complex is not looked at
                    is_end = either(eq(source, 0), eq(source * 2, count))
                    imaginary = pick(is_end, number(0, F64), pick(gt(at, count // 2), -imaginary, imaginary))
                return real, imaginary

            found, scale = transform.run(element), 1 / count if inverse else 1.0
            with w.loop(result[axis]) as at:
                place = (row * result[axis] + at) * inner + column
                for part in range(result[-1]):
                    y.put(place * result[-1] + part, as_type(found[part, at] * scale, y.dtype))


def _exact(value: float) -> float:
    """A whole number in the place of one that a sine leaves beside it."""
    return float(round(value)) if abs(value - round(value)) < 1e-12 else value


def _all(conditions: Sequence[Expression]) -> Expression:
    found: Expression = number(True, DType.BOOL)
    for one in conditions:
        found = both(found, one)
    return found


def stft(node: Defined) -> None:
    """Transforms of frames that begin some steps apart, each times the window."""
    size, bins, given = node.shape(0)[1], node.output_shape(0)[2], node.constant(3)
    if node.integer("onesided", 1) == 0:
        lengths = [bins]
    elif node.has(2):
        lengths = [node.shape(2)[0]]
    elif given is not None or not node.has(3):
        lengths = [size if given is None else int(given.reshape(-1)[0])]
    else:  # as many elements are left of an even length as of the odd one behind it
        lengths = [2 * (bins - 1), 2 * (bins - 1) + 1]
    for count in lengths:
        if count >= 1:
            _frames(node, count, is_asked=len(lengths) > 1)


def _frames(node: Defined, count: int, *, is_asked: bool) -> None:
    (batch, size, *last), (_, frames, bins, _) = node.shape(0), node.output_shape(0)
    parts = last[0] if last else 1  # of real numbers the dim may be left out, as PyTorch's exporter does
    with node.stage() as w:
        x, hop, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        window = w.reads(node.input(2)) if node.has(2) else None
        conditions = [eq(as_type(w.reads(node.input(3)).at(0), I64), count)] if is_asked else []
        transform = Transform(node, w, count, inverse=False)
        with w.shared(batch, frames) as (item, frame), w.when(_all(conditions)):
            start = w.local(I64, frame * as_type(hop.at(0), I64))

            def element(at: Expression) -> Complex:
                source = w.local(I64, start + at)
                inside = both(ge(source, 0), lt(source, size))
                place = (item * size + w.clamped(source, 0, max(size - 1, 0))) * parts
                factor = number(1.0, F64) if window is None else as_type(window.at(at), F64)
                factor = w.local(F64, pick(inside, factor, 0))
                real = as_type(x.at(place), F64) * factor
                return real, as_type(x.at(place + 1), F64) * factor if parts == 2 else number(0, F64)

            found = transform.run(element)
            with w.loop(bins) as at:
                for part in range(2):
                    y[item, frame, at, part] = as_type(found[part, at], y.dtype)


def mel_weights(node: Defined) -> None:
    """Triangles over the bins of a spectrum, evenly apart on the mel scale."""
    bins, bands = node.output_shape(0)
    with node.stage() as w:
        values = [w.reads(node.input(at)) for at in range(5)]
        y, edges = w.writes(node.output(0)), w.scratch(I64, (bands + 2,))
        with w.shared():
            length, rate, low, high = (w.local(F64, as_type(one.at(0), F64)) for one in values[1:])
            low, high = (w.local(F64, Unary("log", one / 700.0 + 1.0) / np.log(10.0) * 2595.0) for one in (low, high))
            step = w.local(F64, (high - low) / (bands + 2))
            with w.loop(bands + 2) as at:
                mel = as_type(at, F64) * step + low
                hertz = (Unary("exp", mel / 2595.0 * np.log(10.0)) - 1.0) * 700.0
                edges[at] = w.clamped(as_type(Unary("floor", (length + 1.0) * hertz / rate), I64), 0, bins)
            with w.loops(bins, bands) as (row, band):
                left, middle, right = (w.local(I64, edges[band + one]) for one in range(3))
                rising = as_type(row - left, F64) / as_type(maximum(middle - left, 1), F64)
                falling = as_type(right - row, F64) / as_type(maximum(right - middle, 1), F64)
                found = pick(both(ge(row, left), le(row, middle)), rising, 0)
                found = pick(both(eq(left, middle), eq(row, middle)), number(1, F64), found)
                found = pick(both(ge(row, middle), lt(row, right)), falling, found)
                y[row, band] = as_type(found, y.dtype)


DEFINITIONS: dict[str, Definition] = {"DFT": dft, "STFT": stft, "MelWeightMatrix": mel_weights}

"""Every vector function against float64 over all exponents, with the bound that its docstring states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.kernel import Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.function import Function, Value, joined
from kernels.llvm.module import Module
from kernels.math import rounding
from kernels.math.erf import erf
from kernels.math.exponential import exp, exp_nonpositive, sigmoid
from kernels.math.gelu import gelu
from kernels.math.hyperbolic import acosh, asinh, atanh, cosh, sinh
from kernels.math.inverse import acos, asin, atan
from kernels.math.logarithm import log
from kernels.math.power import power
from kernels.math.quotient import quotient
from kernels.math.remainder import fmod
from kernels.math.tanh import tanh
from kernels.math.trigonometric import cos, sin
from kernels.run import Executable
from kernels.target import Target, host
from tests.kernels.targets import HERE, changed_host

COUNT = 1 << 18
SMALLEST_NORMAL = 2.0**-126
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-40, -1e-40, 1.17549435e-38, 3.4e38, -3.4e38, 1, -1],
    np.float32,
)  # fmt: skip


def every_exponent() -> np.ndarray:
    """A stride through all 2^32 bit patterns, and more of what is usual."""
    patterns = (np.arange(COUNT // 2, dtype=np.uint64) * (2**33 // COUNT) + 977).astype(np.uint32).view(np.float32)
    generator = np.random.default_rng(0)
    usual = [generator.uniform(-limit, limit, COUNT // 8) for limit in (1, 12, 110)] + [
        generator.normal(size=COUNT // 8)
    ]
    made = np.concatenate([patterns, *(one.astype(np.float32) for one in usual)])
    made[: len(SPECIAL)] = SPECIAL
    return made


def run(
    function: Callable[..., Value], *arrays: np.ndarray, target: Target, lanes: int, vectors: int = 2
) -> np.ndarray:
    module, size = Module(target), len(arrays[0])
    names = [f"x{position}" for position in range(len(arrays))]

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        def one(start: Value, _: tuple[Value, ...]) -> None:
            places = [f.add(start, vector * lanes) for vector in range(vectors)]
            kind = types.vector("float", lanes)
            given = [joined([f.load(kind, f.at(pointers[name], place)) for place in places]) for name in names]
            for part, place in zip(function(f, *given).split(), places, strict=True):
                f.store(part, f.at(pointers["y"], place))

        f.loop(0, size, lanes * vectors, one)

    operands = tuple(Operand(name, "input", DType.F32, size) for name in names)
    y = np.zeros(size, np.float32)
    kernel = write_kernel(module, "sweep", (*operands, Operand("y", "output", DType.F32, size)), 1, body)
    Executable([kernel])({**dict(zip(names, arrays, strict=True)), "y": y})
    return y


def flushed(x: np.ndarray) -> np.ndarray:
    """Zeros of the same sign for subnormal numbers."""
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)


def zero_or_right(found: np.ndarray, exact: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """The distance from the exact result of the arguments, or of those that are not subnormal and 0 for the others.

    A zero is right where the exact result is subnormal. Nothing else is allowed: a tiny number that is neither counts
    as wrong by infinitely many units.
    """
    with np.errstate(all="ignore"):
        wanted = [exact(*(one.astype(np.float64) for one in given)) for given in (arrays, tuple(map(flushed, arrays)))]
        near = np.minimum(*(units(found, one) for one in wanted))
        small = np.any([np.abs(one) < SMALLEST_NORMAL for one in wanted], axis=0)
    return np.where(small & (found == 0), 0.0, near)


def units(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distance in units of the last place of the exact result; infinite where NaN or infinity differ."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        place = np.maximum(np.spacing(np.abs(nearest)).astype(np.float64), 2.0**-149)
        distance = np.abs(found.astype(np.float64) - exact) / place
    special = ~np.isfinite(nearest) | ~np.isfinite(found)
    same = (found == nearest) | (np.isnan(found) & np.isnan(nearest))
    return np.where(special, np.where(same, 0.0, np.inf), distance)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.frompyfunc(math.erf, 1, 1)(x).astype(np.float64)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1 + small)


FUNCTIONS = {
    "exp": (exp, np.exp, 1), "sigmoid": (sigmoid, _sigmoid, 3), "log": (log, np.log, 2), "erf": (erf, _erf, 6),
    "tanh": (tanh, np.tanh, 6), "sin": (sin, np.sin, 2), "cos": (cos, np.cos, 2),
    "sqrt": (rounding.sqrt, np.sqrt, 0.5), "rsqrt": (rounding.rsqrt, lambda x: 1 / np.sqrt(x), 2),
    "reciprocal": (rounding.reciprocal, lambda x: 1 / x, 0.5), "floor": (rounding.floor, np.floor, 0),
    "ceil": (rounding.ceil, np.ceil, 0), "round": (rounding.round_half_even, np.rint, 0),
    "trunc": (rounding.trunc, np.trunc, 0), "sign": (rounding.sign, np.sign, 0),
    "asin": (asin, np.arcsin, 2), "acos": (acos, np.arccos, 2), "atan": (atan, np.arctan, 2),
    "sinh": (sinh, np.sinh, 2), "cosh": (cosh, np.cosh, 2),
    "asinh": (asinh, np.arcsinh, 2), "acosh": (acosh, np.arccosh, 3), "atanh": (atanh, np.arctanh, 2),
}  # fmt: skip


@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stated_bound_holds_over_all_exponents(name: str, target: Target) -> None:
    function, exact, bound = FUNCTIONS[name]
    x = every_exponent()
    found = run(function, x, target=target, lanes=target.lanes())
    far = zero_or_right(found, exact, x)
    worst = int(np.argmax(far))
    assert far[worst] <= bound, f"{name}({x[worst]!r}) = {found[worst]!r} is {far[worst]:.2f} ULP off"


# Where a formula changes, and where a result is near 0 or the largest number.
EDGES = {
    "asin": (0.5403, 1), "acos": (0.5403, 1, -1), "atan": (1,), "sinh": (2.0**-12, math.log(2) / 2, 89.4159),
    "cosh": (math.log(2) / 2, 89.4159), "asinh": (2.0**60, 0.4), "acosh": (1, 2.0**60), "atanh": (0.5, 1),
}  # fmt: skip


@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
@pytest.mark.parametrize("name", EDGES)
def test_the_stated_bound_holds_where_formulas_change(name: str, target: Target) -> None:
    function, exact, bound = FUNCTIONS[name]
    bits = np.array(EDGES[name], np.float32).view(np.int32)[:, None] + np.arange(-2048, 2048)
    x = np.ascontiguousarray(bits.astype(np.int32).reshape(-1)).view(np.float32)
    found = run(function, x, target=target, lanes=target.lanes())
    far = zero_or_right(found, exact, x)
    worst = int(np.argmax(far))
    assert far[worst] <= bound, f"{name}({x[worst]!r}) = {found[worst]!r} is {far[worst]:.2f} ULP off"


@pytest.mark.parametrize("name", ["asin", "atan", "sinh", "asinh", "atanh"])
def test_a_tiny_argument_is_the_result(name: str) -> None:
    x = np.geomspace(SMALLEST_NORMAL, 1e-5, 4096).astype(np.float32)
    x[1::2] *= -1
    x[:2] = 0.0, -0.0
    found = run(FUNCTIONS[name][0], x, target=host(), lanes=16)
    np.testing.assert_array_equal(found.view(np.uint32), x.view(np.uint32))


@pytest.mark.parametrize("name", ["exp", "sin", "log", "asin", "sinh", "acosh"])
def test_one_lane_gives_the_same_bits_as_many(name: str) -> None:
    function = FUNCTIONS[name][0]
    x = every_exponent()[:4096]
    one, many = (run(function, x, target=host(), lanes=lanes) for lanes in (1, 8))
    number = ~np.isnan(one)
    np.testing.assert_array_equal(one[number].view(np.uint32), many[number].view(np.uint32))
    np.testing.assert_array_equal(np.isnan(one), np.isnan(many))


def test_exp_of_what_is_not_positive() -> None:
    x = -np.abs(every_exponent())
    found = run(exp_nonpositive, x, target=host(), lanes=16)
    assert zero_or_right(found, np.exp, x).max() <= 1


@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
@pytest.mark.parametrize("function", [exp, exp_nonpositive], ids=lambda one: one.__name__)
def test_exponentials_are_zero_from_where_they_would_be_subnormal(
    function: Callable[..., Value], target: Target
) -> None:
    first = np.float32(-87.33654)  # the least number whose exponential is normal
    x = np.full(32, -np.inf, np.float32)
    x[:6] = first, np.nextafter(first, np.float32(-np.inf)), -88.0, -103.5, -1e30, np.finfo(np.float32).min
    found = run(function, x, target=target, lanes=target.lanes())
    assert SMALLEST_NORMAL < found[0] < SMALLEST_NORMAL * (1 + 1e-5)
    np.testing.assert_array_equal(found[1:], 0)
    assert not np.signbit(found).any()


@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_bounded_functions_stay_inside_and_odd_ones_keep_the_sign_of_zero(name: str) -> None:
    function = FUNCTIONS[name][0]
    found = run(function, every_exponent(), target=host(), lanes=16)
    assert np.nanmax(np.abs(found)) == 1
    assert np.signbit(found[:2]).tolist() == [False, True]


def test_gelu_is_close_relative_to_its_argument() -> None:
    x = every_exponent()
    found = run(gelu, x, target=host(), lanes=16)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        want = wide / 2 + wide / 2 * _erf(wide / math.sqrt(2))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    finite = np.isfinite(want)
    far = np.abs(found[finite] - want[finite]) > np.abs(wide[finite]) * 2.0**-22
    assert ((found[finite] == 0) & (np.abs(want[finite]) < SMALLEST_NORMAL))[far].all()
    np.testing.assert_array_equal(found[wide > 6], x[wide > 6])


@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
def test_quotient_is_within_two_steps_and_keeps_infinity(target: Target) -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.choice([-1, 1], 4096) * generator.uniform(1, 2, 4096) for _ in range(2))
    a, b = (x * 2.0 ** generator.integers(-20, 21, 4096) for x in (a, b))
    b[64:128] *= 2.0**79  # as far as it may go
    a, b = a.astype(np.float32), b.astype(np.float32)
    a[:3], b[2:4] = (np.inf, -np.inf, np.nan), (1.0, np.nan)
    for lanes in (4, 8, 16):
        found = run(quotient, a, b, target=target, lanes=lanes)
        want = a.astype(np.float64) / b
        np.testing.assert_array_equal(found[:4], want[:4].astype(np.float32))
        steps = np.abs(found[4:] - want[4:]) / np.spacing(np.abs(want[4:]).astype(np.float32))
        assert steps.max() <= 2


@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
def test_pow_follows_c(target: Target) -> None:
    values = np.array([*SPECIAL, 2, -2, 3, -3, 0.5, -0.5, 7, 2.5, 1e30, 16777216, 33554434], np.float32)
    pairs = np.array(list(itertools.product(values, values)), np.float32)
    generator = np.random.default_rng(0)
    more = np.stack([np.exp(generator.uniform(-80, 80, 40_000)), generator.uniform(-3, 3, 40_000)], 1)
    whole = np.stack([generator.uniform(-10, 10, 40_000), generator.integers(-20, 20, 40_000)], 1)
    both = np.concatenate([pairs, more, whole]).astype(np.float32)
    both = both[: len(both) // 32 * 32]
    x, y = np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])
    found = run(power, x, y, target=target, lanes=target.lanes())
    assert zero_or_right(found, np.power, x, y).max() <= 1
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    zeros = (found == 0) & ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(want[zeros]))


def _pairs() -> tuple[np.ndarray, np.ndarray]:
    """Dividends and divisors of every size; multiples of a divisor and their neighbours; and what is special."""
    generator = np.random.default_rng(0)
    count = 1 << 14
    patterns = generator.integers(0, 2**32, (2, count), dtype=np.uint64).astype(np.uint32).view(np.float32)
    divisors = (generator.normal(size=count) * 2.0 ** generator.integers(-90, 90, count)).astype(np.float32)
    multiples = (np.floor(2 ** generator.uniform(0, 24, count)) * divisors).astype(np.float32)
    near = [np.nextafter(multiples, np.float32(limit)) for limit in (-np.inf, np.inf)]
    values = np.array([*SPECIAL, 2, -2, 3, 0.5, 7, 1e30, 2.0**-102, 2.0**-103], np.float32)
    special = np.array(list(itertools.product(values, values)) * 4, np.float32).T
    whole = [generator.integers(-limit, limit, count).astype(np.float32) for limit in (2**24, 100)]
    a = np.concatenate([patterns[0], multiples, *near, whole[0], special[0]])
    b = np.concatenate([patterns[1], *[divisors] * 3, whole[1], special[1]])
    kept = len(a) // 64 * 64
    return np.ascontiguousarray(a[:kept]), np.ascontiguousarray(b[:kept])


def _is_fmod(found: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether each has all bits of NumPy's, of subnormal numbers too."""
    with np.errstate(all="ignore"):
        wanted = np.fmod(a, b)
    same: np.ndarray = (found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))
    return same


@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
@pytest.mark.parametrize("lanes", [1, 0], ids=["one lane", "all lanes"])
def test_remainders_are_exact(target: Target, lanes: int) -> None:
    a, b = _pairs()
    found = run(fmod, a, b, target=target, lanes=lanes or target.lanes())
    right = _is_fmod(found, a, b)
    wrong = int(np.argmin(right))
    assert right.all(), f"fmod({a[wrong]!r}, {b[wrong]!r}) = {found[wrong]!r}"


@pytest.mark.parametrize("change", [{"is_fused": False}, {"is_bare": True}], ids=["unfused", "bare"])
def test_remainders_are_exact_on_machines_that_lack_instructions(
    change: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code of such a machine, for this one's instructions."""
    target = changed_host(monkeypatch, **change)
    a, b = _pairs()
    assert _is_fmod(run(fmod, a, b, target=target, lanes=4), a, b).all()


@pytest.mark.parametrize("name", EDGES)
def test_products_and_sums_that_round_apart_keep_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = changed_host(monkeypatch, is_fused=False)
    function, exact, bound = FUNCTIONS[name]
    x = every_exponent()
    assert zero_or_right(run(function, x, target=target, lanes=4), exact, x).max() <= bound

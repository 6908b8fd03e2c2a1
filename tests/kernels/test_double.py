"""Functions of f64 against the processor's numbers of 64 bits, with the bound that their docstrings state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.kernel import Operand, write_kernel
from kernels.llvm import types
from kernels.llvm.function import Function, Value, joined
from kernels.llvm.module import Module
from kernels.math import double
from kernels.run import Executable
from kernels.target import Target, host
from tests.kernels.targets import HERE, changed_host

COUNT = 1 << 15
SMALLEST_NORMAL = 2.0**-1022
SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -1e-310, 2.0**-1022, 1.7e308, -1.7e308, 1, -1], np.float64
)
Wide = np.ndarray  # of numpy.longdouble
needs_wider = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="the longest number here is f64")


def every_exponent() -> np.ndarray:
    """A stride through all 2^64 bit patterns, and more of what is usual."""
    patterns = (np.arange(COUNT, dtype=np.uint64) * np.uint64(2**64 // COUNT) + np.uint64(977)).view(np.float64)
    generator = np.random.default_rng(0)
    usual = [generator.uniform(-limit, limit, COUNT) for limit in (1, 3, 20, 750)]
    near_one = 1 + generator.uniform(-0.1, 0.1, COUNT)
    made = np.concatenate([patterns, *usual, generator.normal(size=COUNT), near_one])
    made[: len(SPECIAL)] = SPECIAL
    return made


def run64(function: Callable[..., Value], x: np.ndarray, *, target: Target, lanes: int = 0) -> np.ndarray:
    """The function of all x, two vectors side by side."""
    module, lanes = Module(target), lanes or target.lanes(DType.F64)
    kind = types.vector("double", lanes)

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        def one(start: Value, _: tuple[Value, ...]) -> None:
            places = [f.add(start, vector * lanes) for vector in range(2)]
            given = joined([f.load(kind, f.at(pointers["x"], place, "double")) for place in places])
            for part, place in zip(function(f, given).split(), places, strict=True):
                f.store(part, f.at(pointers["y"], place, "double"))

        f.loop(0, len(x), lanes * 2, one)

    operands = (Operand("x", "input", DType.F64, len(x)), Operand("y", "output", DType.F64, len(x)))
    y = np.zeros(len(x))
    Executable([write_kernel(module, "sweep", operands, 1, body)])({"x": x, "y": y})
    return y


def units64(found: np.ndarray, exact: Callable[[Wide], Wide], x: np.ndarray) -> np.ndarray:
    """The distance in units of the last place; 0 for a zero where the exact result, or the argument, is subnormal."""
    with np.errstate(all="ignore"):
        flushed = np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(0.0, x), x)
        wanted = [exact(one.astype(np.longdouble)) for one in (x, flushed)]
        near = np.minimum(*(_units(found, one) for one in wanted))
        small = np.any([np.abs(one) < SMALLEST_NORMAL for one in wanted], axis=0)
    return np.where(small & (found == 0), 0.0, near)


def _units(found: np.ndarray, exact: Wide) -> np.ndarray:
    nearest = exact.astype(np.float64)
    distance = np.abs(found - exact) / np.maximum(np.spacing(np.abs(nearest)), 5e-324)
    same = (found == nearest) | (np.isnan(found) & np.isnan(nearest))
    return np.where(np.isfinite(nearest) & np.isfinite(found), distance, np.where(same, 0.0, np.inf))


def _erf(x: Wide) -> Wide:
    """2 / sqrt(pi) x e^(-x^2) times the sum of (2 x^2)^k / (1 3 5 ... (2 k + 1)), none of which is negative."""
    inside = np.clip(x, -6.5, 6.5)
    square = inside * inside
    term = total = np.ones_like(x)
    for k in range(1, 200):
        term = term * (2 * square) / (2 * k + 1)
        total = total + term
    root = np.sqrt(4 * np.arctan(np.longdouble(1)))
    return np.where(np.isnan(x), x, np.minimum(np.abs(2 / root * inside * np.exp(-square) * total), 1) * np.sign(x))


def _sigmoid(x: Wide) -> Wide:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


FUNCTIONS: dict[str, tuple[Callable[[Function, Value], Value], Callable[[Wide], Wide], float]] = {
    "exp": (double.exp, np.exp, 2), "sigmoid": (double.sigmoid, _sigmoid, 3), "log": (double.log, np.log, 1),
    "erf": (double.erf, _erf, 4), "tanh": (double.tanh, np.tanh, 3),
}  # fmt: skip


@needs_wider
@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stated_bound_holds_over_all_exponents(name: str, target: Target) -> None:
    function, exact, bound = FUNCTIONS[name]
    x = every_exponent()
    found = run64(function, x, target=target)
    far = units64(found, exact, x)
    worst = int(np.argmax(far))
    assert far[worst] <= bound, f"{name}({x[worst]!r}) = {found[worst]!r} is {far[worst]:.2f} ULP off"


@needs_wider
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_and_sums_that_round_apart_keep_the_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = changed_host(monkeypatch, is_fused=False)
    function, exact, bound = FUNCTIONS[name]
    x = every_exponent()
    assert units64(run64(function, x, target=target), exact, x).max() <= bound


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_numbers_and_one_lane(name: str) -> None:
    """What NumPy gives in f64; a zero for what is subnormal."""
    function, exact, _ = FUNCTIONS[name]
    x = np.resize(SPECIAL, 48)
    one, many = (run64(function, x, target=host(), lanes=lanes) for lanes in (1, 4))
    np.testing.assert_array_equal(one.view(np.uint64), many.view(np.uint64))
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.longdouble)).astype(np.float64)
        of_zero = exact(np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(0.0, x), x).astype(np.longdouble))
    near = np.isclose(one, wanted, rtol=4 * 2.0**-52, atol=0, equal_nan=True)  # the largest bound that is stated
    assert (near | np.isclose(one, of_zero.astype(np.float64), rtol=4 * 2.0**-52, atol=0, equal_nan=True)).all()
    if name in ("erf", "tanh"):
        assert np.signbit(one[:2]).tolist() == [False, True]


def test_exponentials_are_zero_from_where_they_would_be_subnormal() -> None:
    first, last = -708.3964185322641, 709.782712893384
    x = np.full(32, -np.inf)
    x[:6] = first, np.nextafter(first, -np.inf), -720.0, -1e300, last, np.nextafter(last, np.inf)
    found = run64(double.exp, x, target=host())
    assert SMALLEST_NORMAL <= found[0] < SMALLEST_NORMAL * (1 + 1e-12)
    assert np.isfinite(found[4]) and found[4] > 1.79e308 and found[5] == np.inf
    np.testing.assert_array_equal(np.delete(found, [0, 4, 5]), 0)

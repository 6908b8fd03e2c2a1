"""Matrix products against NumPy in float64, between guard pages, for every shape, stride, epilogue and target."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.llvm.compile import assembly
from kernels.target import Target, host, x86_64_v4
from kernels.templates.epilogue import ACCUMULATED, ACCUMULATED_INTEGER, Epilogue, InvalidEpilogue
from kernels.templates.gemm import GEMM, Gemm, GemmCandidate, InvalidGemm, build, candidates
from kernels.templates.grid import balanced, pieces
from kernels.templates.matrix import Matrix
from kernels.templates.tile import supported
from kernels.tensor.expression import Buffer, Cast, Expression, clip, gelu, relu
from tests.kernels.guard import run_guarded
from tests.kernels.machine_code import hot_loop, spills
from tests.kernels.targets import HERE, NAMED, NAMES

ROUNDING = 2.0**-24  # half a unit in the last place of float32
sizes = st.one_of(st.integers(0, 3), st.integers(4, 70))
seeds = st.integers(0, 2**32 - 1)


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def _bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The error that summing in float32 in any order may make."""
    return (a.shape[-1] + 2) * ROUNDING * (np.abs(a) @ np.abs(b)) + 1e-30


def _run(gemm: Gemm, target: Target, choice: int, a: np.ndarray, b: np.ndarray, **more: np.ndarray) -> np.ndarray:
    found = candidates(gemm, target)
    kernel = build(gemm, found[choice % len(found)], target)
    operand = kernel.operand("b")
    stored = b if operand.packing is None else operand.packing.pack(b)
    return run_guarded(kernel, {"a": a, "b": stored, **more})["c"]


@settings(deadline=None, max_examples=20)
@given(rows=sizes, columns=sizes, depth=sizes, choice=st.integers(0, 9), constant=st.booleans(), seed=seeds,
       target=st.sampled_from(HERE))  # fmt: skip
def test_any_size(rows: int, columns: int, depth: int, choice: int, constant: bool, seed: int, target: Target) -> None:
    a, b = _random(seed, rows, depth), _random(seed + 1, depth, columns)
    gemm = Gemm(rows, columns, depth, constant_b=constant)
    got = _run(gemm, target, choice, a, b).reshape(rows, columns)
    exact = a.astype(np.float64) @ b
    assert (np.abs(got - exact) <= _bound(a, b)).all()


@settings(deadline=None, max_examples=20)
@given(
    dims=st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(0, 150)), part=st.integers(1, 60),
    tile=st.tuples(*[st.integers(1, 4)] * 2), stretches=st.tuples(*[st.integers(1, 4)] * 2),
    transposed=st.tuples(st.booleans(), st.booleans()), b=st.sampled_from(("constant", "place", "packed")), seed=seeds,
    target=st.sampled_from(HERE),
)  # fmt: skip
def test_float64(
    dims: tuple[int, int, int], tile: tuple[int, int], stretches: tuple[int, int], part: int,
    transposed: tuple[bool, bool], b: str, seed: int, target: Target,
) -> None:  # fmt: skip
    m, n, k = dims
    left, right = (_random(seed + at, *shape).astype(np.float64) for at, shape in enumerate(((m, k), (k, n))))
    turned = transposed[1] and b != "place"
    gemm = Gemm(
        m, n, k, constant_b=b == "constant", a=Matrix(1, m) if transposed[0] else None,
        b=Matrix(1, k) if turned else None, arithmetic="f64",
    )  # fmt: skip
    kernel = build(gemm, GemmCandidate(*tile, *stretches, b, part), target)
    packing, stored = kernel.operand("b").packing, np.ascontiguousarray(right.T) if turned else right
    arrays = {
        "a": np.ascontiguousarray(left.T) if transposed[0] else left,
        "b": packing.pack(stored) if packing else stored,
    }
    got = run_guarded(kernel, arrays)["c"].reshape(m, n)
    assert got.dtype == np.float64
    exact = left.astype(np.longdouble) @ right.astype(np.longdouble)
    assert (np.abs(got - exact) <= (k + 2) * 2.0**-53 * (np.abs(left) @ np.abs(right)) + 1e-300).all()


@settings(deadline=None, max_examples=20)
@given(
    dims=st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(0, 150)), part=st.integers(1, 60),
    tile=st.tuples(*[st.integers(1, 4)] * 2), stretches=st.tuples(*[st.integers(1, 4)] * 2), transposed=st.booleans(),
    b=st.sampled_from(("constant", "place", "packed")), seed=seeds, target=st.sampled_from(HERE),
)  # fmt: skip
def test_parts_of_the_depth(
    dims: tuple[int, int, int], tile: tuple[int, int], stretches: tuple[int, int], part: int, transposed: bool,
    b: str, seed: int, target: Target,
) -> None:  # fmt: skip
    m, n, k = dims
    left, right = _random(seed, m, k), _random(seed + 1, k, n)
    bias, plain = _random(seed + 2, n), Gemm(m, n, k)
    gemm = Gemm(
        m, n, k, constant_b=b == "constant", a=Matrix(1, m) if transposed else None,
        epilogue=Epilogue(ACCUMULATED[()] + Buffer("bias", DType.F32, (n,))[plain.column]),
    )  # fmt: skip
    kernel = build(gemm, GemmCandidate(*tile, *stretches, b, part), target)
    packing = kernel.operand("b").packing
    arrays = {"a": np.ascontiguousarray(left.T) if transposed else left, "b": packing.pack(right) if packing else right}
    got = run_guarded(kernel, {**arrays, "bias": bias})["c"].reshape(m, n)
    exact = left.astype(np.float64) @ right + bias
    assert (np.abs(got - exact) <= _bound(left, right) + ROUNDING * np.abs(exact)).all()


@pytest.mark.skipif(not supported("u8s8", host()), reason="the machine has no dot products of bytes")
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("part", [1, 5, 16])
def test_parts_of_the_depth_hold_whole_groups_of_bytes(part: int, constant: bool) -> None:
    generator = np.random.default_rng(part)
    a, b = generator.integers(0, 256, (9, 131), np.uint8), generator.integers(-128, 128, (131, 37), np.int8)
    epilogue = Epilogue(ACCUMULATED_INTEGER[()])
    gemm = Gemm(9, 37, 131, arithmetic="u8s8", epilogue=epilogue, constant_b=constant)
    kernel = build(gemm, GemmCandidate(4, 2, 2, 1, "constant" if constant else "packed", part), host())
    packing = kernel.operand("b").packing
    got = run_guarded(kernel, {"a": a, "b": packing.pack(b) if packing else b})["c"].reshape(9, 37)
    assert (got == a.astype(np.int64) @ b.astype(np.int64)).all()


def test_packed_weights_are_asked_for_ahead_where_the_first_cache_does_not_hold_them() -> None:
    def asks(gemm: Gemm) -> bool:
        listing = assembly(build(gemm, candidates(gemm, x86_64_v4())[0], x86_64_v4()).module.text(), x86_64_v4())
        return "prefetch" in hot_loop(listing)

    assert asks(Gemm(128, 768, 768)) and asks(Gemm(1, 768, 768))
    assert not asks(Gemm(64, 64, 64)) and not asks(Gemm(128, 768, 768, constant_b=False))


def test_a_row_alone_does_not_ask_for_weights_that_stay_in_the_second_cache() -> None:
    def asks(constants: int) -> bool:
        target = replace(x86_64_v4(), constants=constants)
        return "prefetch" in build(Gemm(1, 256, 256), GemmCandidate(1, 8, 1, 1, "constant"), target).module.text()

    assert asks(x86_64_v4().l2 + 1) and not asks(x86_64_v4().l2)


def test_a_row_alone_asks_for_what_memory_has_under_way_a_share_in_each_step() -> None:
    """At 5 bytes a cycle, 3.6 cycles a nanosecond and 100 ns until memory answers; with a later answer farther on."""
    gemm, target = Gemm(1, 768, 768), x86_64_v4()
    choice = candidates(gemm, target)[0]
    assert target.core.under_way == 1800
    slow = replace(target, core=replace(target.core, latency=321.0))
    for one, place in ((target, 1800), (slow, 5778)):
        assert f"i64 {place}\n" in build(gemm, choice, one).module.text()
    loop = hot_loop(assembly(build(gemm, choice, target).module.text(), target))
    kinds = "".join(
        "a" if "prefetch" in line else "f" for line in loop.splitlines() if re.search("prefetch|fmadd", line)
    )
    assert kinds.count("a") == 4 * choice.vectors and "a" * (choice.vectors + 1) not in kinds


def test_products_taken_whole_and_in_parts_are_rivals() -> None:
    found = GEMM.rivals(Gemm(128, 768, 3072), x86_64_v4(), 1)
    assert len(found) == 2 and {one.depth_block is None for one in found} == {True, False}


@settings(deadline=None, max_examples=15)
@given(
    batch=st.lists(st.integers(1, 3), min_size=1, max_size=2), shared=st.booleans(), transposed_a=st.booleans(),
    transposed_b=st.booleans(), constant=st.booleans(), dims=st.tuples(*[st.integers(1, 40)] * 3),
    choice=st.integers(0, 9), seed=seeds,
)  # fmt: skip
def test_batches_and_transposed_operands(
    batch: list[int], shared: bool, transposed_a: bool, transposed_b: bool, constant: bool,
    dims: tuple[int, int, int], choice: int, seed: int,
) -> None:  # fmt: skip
    m, n, k = dims
    a, b = _random(seed, *batch, m, k), _random(seed + 1, *([] if shared else batch), k, n)
    stored_a = np.ascontiguousarray(np.swapaxes(a, -1, -2)) if transposed_a else a
    stored_b = np.ascontiguousarray(np.swapaxes(b, -1, -2)) if transposed_b else b
    strides = tuple(int(np.prod(batch[position + 1 :])) for position in range(len(batch)))
    gemm = Gemm(
        m, n, k, tuple(batch), constant_b=constant,
        a=Matrix(1, m, tuple(s * m * k for s in strides)) if transposed_a else None,
        b=Matrix(*((1, k) if transposed_b else (n, 1)), tuple(0 if shared else s * k * n for s in strides)),
    )  # fmt: skip
    got = _run(gemm, host(), choice, stored_a, stored_b).reshape(*batch, m, n)
    assert (np.abs(got - a.astype(np.float64) @ b) <= _bound(a, b)).all()


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 2, 1), (1, 1, 4), (3, 2, 1), (1, 2, 4), (3, 1, 4)])
@pytest.mark.parametrize("choice", [0, 3])
def test_a_constant_has_matrices_for_some_dims_of_the_batch(shape: tuple[int, ...], choice: int) -> None:
    """They are packed once each, however many products they are in."""
    batch, m, n, k = (3, 2, 4), 5, 37, 11
    a, b = _random(0, *batch, m, k), _random(1, *shape, k, n)
    strides = [int(np.prod(shape[at + 1 :])) * k * n if one > 1 else 0 for at, one in enumerate(shape)]
    gemm = Gemm(m, n, k, batch, b=Matrix(n, 1, tuple(strides)))
    got = _run(gemm, host(), choice, a, b).reshape(*batch, m, n)
    assert (np.abs(got - a.astype(np.float64) @ b) <= _bound(a, np.broadcast_to(b, (*batch, k, n)))).all()


def test_rows_apart_leave_what_lies_between() -> None:
    a, b = _random(0, 5, 12), _random(1, 7, 20)
    gemm = Gemm(5, 20, 7, a=Matrix(12, offset=2), c=Matrix(23, offset=1))
    c = np.full(1 + 4 * 23 + 20, 7.0, np.float32)
    got = _run(gemm, host(), 0, a.reshape(-1)[: 2 + 4 * 12 + 7], b, c=c)
    rows = np.concatenate([got[1:], np.full(3, 7.0, np.float32)]).reshape(5, 23)
    np.testing.assert_allclose(rows[:, :20], a[:, 2:9].astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
    assert (rows[:, 20:] == 7).all() and got[0] == 7


@settings(deadline=None, max_examples=15)
@given(
    rows=st.integers(1, 30), columns=st.integers(1, 50), depth=st.integers(0, 20), which=st.integers(0, 5), seed=seeds
)
def test_epilogues(rows: int, columns: int, depth: int, which: int, seed: int) -> None:
    plain = Gemm(rows, columns, depth)
    bias = Buffer("bias", DType.F32, (columns,))[plain.column]
    scale = Buffer("scale", DType.F32, (rows,))[plain.row]
    residual = Buffer("residual", DType.F32, (rows, columns))[plain.row, plain.column]
    turned = Buffer("turned", DType.F32, (columns, rows))[plain.column, plain.row]
    x: Expression = ACCUMULATED[()]
    value = [x + bias, relu(x + bias + residual), gelu(x), x * scale + turned, clip(x, -0.5, 0.5), Cast(DType.F16, x)][
        which
    ]
    gemm = replace(plain, epilogue=Epilogue(value))
    a, b = _random(seed, rows, depth), _random(seed + 1, depth, columns)
    arrays = {
        "bias": _random(2, columns), "scale": _random(3, rows), "residual": _random(4, rows, columns),
        "turned": _random(5, columns, rows),
    }  # fmt: skip
    names = {buffer.name for buffer in gemm.epilogue.buffers}
    got = _run(gemm, host(), which, a, b, **{name: array for name, array in arrays.items() if name in names})
    exact = a.astype(np.float64) @ b
    erf = np.vectorize(math.erf)
    expected = [
        lambda: exact + arrays["bias"],
        lambda: np.maximum(exact + arrays["bias"] + arrays["residual"], 0),
        lambda: exact * (1 + erf(exact / np.sqrt(2))) / 2,
        lambda: exact * arrays["scale"][:, None] + arrays["turned"].T,
        lambda: np.clip(exact, -0.5, 0.5),
        lambda: exact.astype(np.float16),
    ][which]()
    # Half precision rounds to 2^-11; the others to a few roundings of float32 more than the product.
    slack = 2.0**-10 * np.abs(expected) + 1e-6 if which == 5 else 2e-6 * (1 + np.abs(expected))
    magnitude = 4 * (1 + (np.abs(arrays["scale"][:, None]) if which == 3 else 0))
    assert (np.abs(got.reshape(rows, columns) - expected) <= magnitude * _bound(a, b) + slack).all()


def test_nan_and_infinity_pass_through_a_product_and_a_relu() -> None:
    gemm = Gemm(3, 20, 2, epilogue=Epilogue(relu(ACCUMULATED[()])))
    a = np.array([[1, 1], [np.nan, 1], [np.inf, 1]], np.float32)
    got = _run(gemm, host(), 0, a, np.ones((2, 20), np.float32)).reshape(3, 20)
    assert (got[0] == 2).all() and np.isnan(got[1]).all() and np.isposinf(got[2]).all()


@settings(deadline=None, max_examples=20)
@given(rows=st.integers(1, 30), columns=st.integers(1, 50), depth=st.integers(1, 130), choice=st.integers(0, 5),
       seed=seeds, constant=st.booleans())  # fmt: skip
@pytest.mark.skipif(not supported("u8s8", host()), reason="the machine has no dot products of bytes")
def test_bytes_are_multiplied_exactly(
    rows: int, columns: int, depth: int, choice: int, seed: int, constant: bool
) -> None:
    generator = np.random.default_rng(seed)
    a = generator.integers(0, 256, (rows, depth), np.uint8)
    b = generator.integers(-128, 128, (depth, columns), np.int8)
    gemm = Gemm(
        rows, columns, depth, arithmetic="u8s8", epilogue=Epilogue(ACCUMULATED_INTEGER[()]), constant_b=constant
    )
    got = _run(gemm, host(), choice, a, b).reshape(rows, columns)
    assert (got == a.astype(np.int64) @ b.astype(np.int64)).all()


@settings(deadline=None, max_examples=20)
@given(
    rows=st.integers(1, 30), columns=st.integers(1, 50), depth=st.integers(1, 70), choice=st.integers(0, 5), seed=seeds
)
@pytest.mark.skipif(not supported("bf16", host()), reason="the machine has no dot products of bfloat16")
def test_bfloat16_products_are_summed_in_float32(rows: int, columns: int, depth: int, choice: int, seed: int) -> None:
    a, b = _bfloat(_random(seed, rows, depth)), _bfloat(_random(seed + 1, depth, columns))
    gemm = Gemm(rows, columns, depth, arithmetic="bf16")
    got = _run(gemm, host(), choice, a, b).reshape(rows, columns)
    wide = [(one.astype(np.uint32) << 16).view(np.float32) for one in (a, b)]
    # The instruction rounds a pair's sum once more than a fused multiply-add would.
    assert (np.abs(got - wide[0].astype(np.float64) @ wide[1]) <= 2 * _bound(*wide)).all()


def _bfloat(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("target", NAMED, ids=NAMES)
@pytest.mark.parametrize("dims", [(128, 768, 768), (128, 768, 3072), (1, 1000, 2048), (4, 768, 768), (100, 77, 65)])
def test_no_candidate_spills(target: Target, dims: tuple[int, int, int]) -> None:
    gemm = Gemm(*dims)
    for candidate in candidates(gemm, target)[:4]:
        listing = assembly(build(gemm, candidate, target).module.text(), target)
        # One or two in four steps of about 25 products cost nothing; a tile too large spills for most of its vectors.
        assert spills(hot_loop(listing)) <= 2, f"{candidate} on {target.cpu} spills {spills(hot_loop(listing))} vectors"


@given(total=st.integers(0, 500), most=st.integers(1, 40))
def test_balanced_pieces_cover_the_whole(total: int, most: int) -> None:
    groups = balanced(total, most)
    assert sum(group.size * group.count for group in groups) == total
    assert pieces(groups) == -(-total // most)
    assert all(group.size <= most for group in groups)
    assert max((g.size for g in groups), default=0) - min((g.size for g in groups), default=0) <= 1


def test_refusals_say_why() -> None:
    with pytest.raises(InvalidGemm, match="the output's columns must lie side by side"):
        Gemm(3, 4, 5, c=Matrix(1, 3))
    with pytest.raises(InvalidGemm, match="matrix a has 0 batch strides for 1 dims"):
        Gemm(3, 4, 5, (2,), a=Matrix(5))
    plain = Gemm(3, 4, 5)
    bias = Buffer("bias", DType.F32, (4, 4))
    twice = Epilogue(bias[plain.column, 0] + bias[0, plain.column])
    with pytest.raises(InvalidEpilogue, match="operand 'bias' at two different places"):
        build(replace(plain, epilogue=twice), candidates(plain, host())[0], host())

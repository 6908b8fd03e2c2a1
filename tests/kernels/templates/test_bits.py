"""Products with weights of a few bits: the sums of the dequantized numbers, between guard pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.target import Target
from kernels.templates import bits_dots, bits_row
from kernels.templates.bits import BITS_PRODUCT, BitsProduct, InvalidBits, build, candidates
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.tensor.expression import Buffer
from tests.kernels.guard import run_guarded
from tests.kernels.targets import HERE


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last dim in whole bytes, the low bits first."""
    each = 8 // bits
    rest = -codes.shape[-1] % each
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, rest)]).reshape(*codes.shape[:-1], -1, each)
    return np.bitwise_or.reduce(padded << (np.arange(each) * bits), axis=-1).astype(np.uint8)


@settings(deadline=None, max_examples=20)
@given(
    dims=st.tuples(st.integers(1, 30), st.integers(1, 60), st.integers(1, 200)), bits=st.sampled_from((2, 4, 8)),
    block=st.sampled_from((16, 32, 64)), zeros=st.sampled_from(("middle", "codes", "floats")),
    choice=st.integers(0, 20), target=st.sampled_from(HERE),
)  # fmt: skip
def test_any_width_block_and_zero_point(dims, bits, block, zeros, choice, target: Target) -> None:
    rows, columns, depth = dims
    generator, count = np.random.default_rng(dims), -(-depth // block)
    codes = generator.integers(0, 1 << bits, (columns, count * block))
    scales = generator.random((columns, count)).astype(np.float32) + 0.1
    offsets = (
        generator.integers(0, 1 << bits, (columns, count))
        if zeros != "middle"
        else np.full((columns, count), 1 << bits - 1)
    )
    plain = BitsProduct(rows, columns, depth, bits, block, zeros)
    bias = Buffer("bias", DType.F32, (columns,))[plain.gemm.column]
    product = BitsProduct(rows, columns, depth, bits, block, zeros, Epilogue(ACCUMULATED[()] + bias))
    found = candidates(product, target)
    kernel = build(product, found[choice % len(found)], target)
    given = {"b": packed(codes, bits), "scales": scales}
    if zeros != "middle":
        given["zeros"] = packed(offsets, bits) if zeros == "codes" else offsets.astype(np.float32)
    arrays = {name: kernel.operand(name).packing.pack(one) for name, one in given.items()}
    a, added = (generator.standard_normal(shape).astype(np.float32) for shape in ((rows, depth), (columns,)))
    got = run_guarded(kernel, {"a": a, "bias": added, **arrays})["c"].reshape(rows, columns)
    wide = (codes.reshape(columns, count, block) - offsets[..., None]) * scales[..., None].astype(np.float64)
    b = wide.reshape(columns, -1)[:, :depth].T
    bound = (depth + 6) * 2.0**-24 * (np.abs(a) @ np.abs(b) + np.abs(added))
    assert (np.abs(got - (a.astype(np.float64) @ b + added)) <= bound).all()


def _drawn(columns: int, depth: int, bits: int, block: int, zeros: str):
    """A product of one row with a bias, its constants, its B, and B where zero points are added to codes."""
    generator, count = np.random.default_rng((columns, depth)), -(-depth // block)
    codes = generator.integers(0, 1 << bits, (columns, count * block))
    scales = generator.random((columns, count)).astype(np.float32) + 0.1
    offsets = np.full((columns, count), 1 << bits - 1)
    if zeros != "middle":
        offsets = generator.integers(0, 1 << bits, (columns, count))
    bias = Buffer("bias", DType.F32, (columns,))[BitsProduct(1, columns, depth, bits, block, zeros).gemm.column]
    product = BitsProduct(1, columns, depth, bits, block, zeros, Epilogue(ACCUMULATED[()] + bias))
    given = {"b": packed(codes, bits), "scales": scales}
    if zeros != "middle":
        given["zeros"] = packed(offsets, bits) if zeros == "codes" else offsets.astype(np.float32)
    each = codes.reshape(columns, count, block)
    b, most = (
        ((each + sign * offsets[..., None]) * scales[..., None].astype(np.float64)).reshape(columns, -1)[:, :depth].T
        for sign in (-1, 1)
    )
    return product, given, b, most


@settings(deadline=None, max_examples=20)
@given(
    dims=st.tuples(st.integers(1, 200), st.integers(1, 200)), bits=st.sampled_from((2, 4, 8)),
    block=st.sampled_from((8, 16, 32, 128)), zeros=st.sampled_from(("middle", "codes", "floats")),
    choice=st.integers(0, 20), target=st.sampled_from(HERE),
)  # fmt: skip
def test_one_row_is_multiplied_where_codes_are_widened(dims, bits, block, zeros, choice, target: Target) -> None:
    columns, depth = dims
    product, given, b, most = _drawn(columns, depth, bits, block, zeros)
    found = bits_row.candidates(product, target)
    kernel = bits_row.build(product, found[choice % len(found)], target)
    arrays = {name: kernel.operand(name).packing.pack(one) for name, one in given.items()}
    generator = np.random.default_rng((depth, columns))
    a, added = (generator.standard_normal(size).astype(np.float32) for size in (depth, columns))
    got = run_guarded(kernel, {"a": a, "bias": added, **arrays})["c"].reshape(columns)
    # Sums of codes and of their zero points are rounded each by itself.
    bound = (depth + 8) * 2.0**-24 * (np.abs(a) @ most + np.abs(added))
    assert (np.abs(got - (a.astype(np.float64) @ b + added)) <= bound).all()


def test_more_rows_than_one_are_refused() -> None:
    with pytest.raises(InvalidBits, match="a product of 2 rows is no product of one row"):
        bits_row.candidates(BitsProduct(2, 64, 64, 4, 32), HERE[0])


def test_weights_take_their_bits() -> None:
    product = BitsProduct(1, 64, 128, 4, 32)
    kernel = BITS_PRODUCT.kernel(product, HERE[0])
    assert kernel.operand("b").bytes == 64 * 128 // 2
    assert kernel.operand("scales").bytes == 4 * 64 * 4


@pytest.mark.parametrize("bits, block", [(3, 32), (4, 1), (2, 2), (4, 0)])
def test_codes_fill_bytes(bits: int, block: int) -> None:
    with pytest.raises(InvalidBits, match=f"codes of {bits} bits in blocks of {block} do not fill bytes"):
        BitsProduct(1, 2, 64, bits, block)


DOTS = tuple(one for one in HERE if bits_dots.fits(BitsProduct(1, 64, 64, 4, 32), one))


@pytest.mark.skipif(not DOTS, reason="this processor has no dot products of bytes")
@settings(deadline=None, max_examples=25)
@given(
    dims=st.tuples(st.integers(1, 200), st.integers(1, 300)), bits=st.sampled_from((2, 4, 8)),
    block=st.sampled_from((16, 32, 256)), zeros=st.sampled_from(("middle", "codes", "floats")),
    choice=st.integers(0, 20), target=st.sampled_from(DOTS), spread=st.sampled_from((0, 3, 30)),
)  # fmt: skip
def test_one_row_in_digits_is_as_right_as_floats(dims, bits, block, zeros, choice, target: Target, spread) -> None:
    columns, depth = dims
    product, given, b, most = _drawn(columns, depth, bits, block, zeros)
    if not bits_dots.fits(product, target):
        return
    found = bits_dots.candidates(product, target)
    kernel = bits_dots.build(product, found[choice % len(found)], target)
    arrays = {name: kernel.operand(name).packing.pack(one) for name, one in given.items()}
    generator = np.random.default_rng((depth, columns))
    a = (generator.standard_normal(depth) * 10.0 ** generator.uniform(-spread, spread, depth)).astype(np.float32)
    added = generator.standard_normal(columns).astype(np.float32)
    got = run_guarded(kernel, {"a": a, "bias": added, **arrays})["c"].reshape(columns)
    # A number has 24 bits of the largest of its block.
    padded = np.zeros(-(-depth // block) * block)
    padded[:depth] = np.abs(a)
    largest = np.repeat(padded.reshape(-1, block).max(axis=1), block)[:depth]
    bound = (-(-depth // block) + 8) * 2.0**-24 * (np.abs(a) @ most + np.abs(added)) + 2.0**-23 * (largest @ most)
    assert (np.abs(got - (a.astype(np.float64) @ b + added)) <= bound).all()


@pytest.mark.skipif(not DOTS, reason="this processor has no dot products of bytes")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_digits_of_what_is_not_finite_give_no_number(value: float) -> None:
    product, given, _, _ = _drawn(40, 64, 4, 32, "middle")
    kernel = bits_dots.BITS_DOTS.kernel(product, DOTS[0])
    arrays = {name: kernel.operand(name).packing.pack(one) for name, one in given.items()}
    a = np.ones(64, np.float32)
    a[40] = value
    assert np.isnan(run_guarded(kernel, {"a": a, "bias": np.zeros(40, np.float32), **arrays})["c"]).all()


@pytest.mark.skipif(not DOTS, reason="this processor has no dot products of bytes")
@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-36, 1e-20, 1e36])
def test_digits_of_small_and_great_rows(scale: float) -> None:
    product, given, b, most = _drawn(40, 64, 4, 32, "codes")
    kernel = bits_dots.BITS_DOTS.kernel(product, DOTS[0])
    arrays = {name: kernel.operand(name).packing.pack(one) for name, one in given.items()}
    a = (np.linspace(-1, 1, 64) * scale).astype(np.float32)
    got = run_guarded(kernel, {"a": a, "bias": np.zeros(40, np.float32), **arrays})["c"].reshape(40)
    bound = 2.0**-16 * np.abs(a) @ most + 1e-34  # what flushing subnormal numbers loses
    assert (np.abs(got - a.astype(np.float64) @ b) <= bound).all()

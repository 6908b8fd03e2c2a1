"""Tile programs: their meaning beside plain NumPy, and the machine's beside their meaning where there is a unit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kernels.dtype import DType
from kernels.kernel import Operand, write_kernel
from kernels.llvm.compile import assembly
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.run import Executable, aligned
from kernels.target import Target, host, x86_64_amx, x86_64_v4
from kernels.tensor.scalars import narrow, widen
from kernels.units.instructions import TILE_BYTES, Depth, Instruction, LoadTile, TilePlace, UnitArithmetic, product
from kernels.units.interpret import OutsideMemory, interpret
from kernels.units.state import configuration, permitted
from kernels.units.write import NoMatrixUnit, has_unit, write

Bytes = npt.NDArray[np.uint8]
has_units = pytest.mark.skipif(
    not has_unit("bf16", host()) or permitted() is not None, reason="the processor has no matrix units"
)
SHAPES = ((1, 1), (2, 2), (1, 2), (2, 1), (1, 3))


def operands(rows: int, columns: int, steps: int, seed: int = 0) -> dict[str, Bytes]:
    """Memory of a product of bfloat16: rows of A side by side, a packed panel, sums."""
    generator = np.random.default_rng(seed)
    found = {
        "a": generator.standard_normal(rows * 16 * steps * 32), "b": generator.standard_normal(steps * columns * 512),
    }  # fmt: skip
    memory = {name: aligned(2 * array.size, np.uint8) for name, array in found.items()}
    for name, array in found.items():
        memory[name][:] = narrow(array.astype(np.float32), DType.BF16).view(np.uint8)
    return memory | {"sums": aligned(rows * columns * TILE_BYTES, np.uint8)}


def product_of(rows: int, columns: int, steps: int) -> tuple[Instruction, ...]:
    """The tile program for such operands."""
    row = 64 * steps
    return product("bf16", rows, columns, (Depth(steps, 64),), a_stride=row, a_apart=16 * row)


def kernel_of(program: tuple[Instruction, ...], memory: dict[str, Bytes], target: Target) -> Executable:
    """The program as a kernel."""

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        write(f, program, pointers)

    roles = {"a": "input", "b": "input", "sums": "output"}
    operands = tuple(Operand(name, roles[name], DType.U8, array.size) for name, array in memory.items())  # type: ignore[arg-type]
    return Executable([write_kernel(Module(target), "tiles", operands, 1, body)])


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_a_product_of_bf16_sums_in_float32(rows: int, columns: int) -> None:
    steps = 3
    memory = operands(rows, columns, steps)
    interpret(product_of(rows, columns, steps), memory)
    a = widen(memory["a"].view(np.uint16), DType.BF16).reshape(16 * rows, 32 * steps).astype(np.float64)
    pairs = widen(memory["b"].view(np.uint16), DType.BF16).reshape(16 * steps, 16 * columns, 2)
    b = pairs.transpose(0, 2, 1).reshape(32 * steps, 16 * columns)
    sums = memory["sums"].view(np.float32).reshape(16 * rows, 16 * columns)
    assert np.abs(sums - a @ b).max() < 1e-5 * np.abs(a @ b).max()  # 96 products, each sum rounded to 24 bits


def test_sums_go_on_from_memory() -> None:
    memory = operands(1, 1, 1)
    interpret(product_of(1, 1, 1), memory)
    once = memory["sums"].view(np.float32).copy()
    program = product("bf16", 1, 1, (Depth(1, 64),), a_stride=64, a_apart=0, begins=False)
    interpret(program, memory)
    assert np.allclose(memory["sums"].view(np.float32), 2 * once, rtol=1e-6)


@pytest.mark.parametrize("arithmetic", ["u8s8", "s8s8", "s8u8", "u8u8"])
def test_products_of_bytes_are_exact(arithmetic: UnitArithmetic) -> None:
    generator = np.random.default_rng(1)
    kinds = {"u": np.uint8, "s": np.int8}
    a, b = (generator.integers(0, 256, (16, 64)).astype(np.uint8) for _ in range(2))
    sums = aligned(TILE_BYTES, np.uint8)
    program = product(arithmetic, 1, 1, (Depth(1, 64),), a_stride=64, a_apart=0)
    interpret(program, {"a": a.reshape(-1), "b": b.reshape(-1), "sums": sums})
    left = a.view(kinds[arithmetic[0]]).astype(int)
    right = b.view(kinds[arithmetic[2]]).reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16).astype(int)
    assert (sums.view(np.int32).reshape(16, 16) == left @ right).all()


def test_subnormal_numbers_are_zeros() -> None:
    memory = {name: aligned(TILE_BYTES, np.uint8) for name in ("a", "b", "sums")}
    memory["a"].view(np.uint16)[:] = 1  # the least subnormal number
    memory["b"].view(np.uint16)[:] = 0x7F00  # a large one
    interpret(product_of(1, 1, 1), memory)
    assert not memory["sums"].any()


def test_a_tile_outside_its_memory_is_refused() -> None:
    with pytest.raises(OutsideMemory, match="from byte 64 to 1088 of the 1024 of 'a'"):
        interpret((LoadTile(0, TilePlace("a", 64)),), {"a": aligned(TILE_BYTES, np.uint8)})


def test_all_tiles_are_configured_whole() -> None:
    given = configuration()
    assert len(given) == 64 and given[0] == 1
    assert np.frombuffer(given[16:32], np.uint16).tolist() == [64] * 8 and list(given[48:56]) == [16] * 8


def test_instructions_are_those_of_the_unit() -> None:
    """Also on machines without one: the code is compiled, not run."""
    module = Module(x86_64_amx())
    f = Function(module, "tiles", (), exported=True)
    write(f, product_of(2, 2, 3), {name: Value(("null",), "ptr") for name in ("a", "b", "sums", "next")})
    f.finish()
    assert module.uses_units
    text = assembly(module.text(), x86_64_amx())
    assert [text.count(one) for one in ("tdpbf16ps", "tileloadd", "tilestored", "tilezero")] == [4, 4, 4, 4]


def test_a_target_without_a_unit_is_refused() -> None:
    f = Function(Module(x86_64_v4()), "tiles", ())
    with pytest.raises(NoMatrixUnit, match="x86-64-v4 has no matrix unit for bf16"):
        write(f, product_of(1, 1, 1), {name: Value(("null",), "ptr") for name in ("a", "b", "sums")})


@has_units
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_the_machine_gives_the_same_bits(rows: int, columns: int) -> None:
    memory = operands(rows, columns, 4, seed=rows)
    meant = {name: array.copy() for name, array in memory.items()}
    program = product_of(rows, columns, 4)
    kernel_of(program, memory, host())(memory)
    interpret(program, meant)
    assert (memory["sums"] == meant["sums"]).all()

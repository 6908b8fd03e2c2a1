"""What is chosen and written for named processors, recorded so that a change of it is seen and read.

Kernels of another processor than this machine's run nowhere here, and a worse choice computes the same: neither is
noticed by comparing results. RECORD=1 writes the files anew; their difference says what a change of the code changed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.emit.program import emit, stored_weights
from kernels.emit.standalone import standalone
from kernels.kernel import Operand, write_kernel
from kernels.listing import Listing
from kernels.llvm.emission import emit_all
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.pool import write_pool
from kernels.target import Target, aarch64, host, x86_64_v4
from kernels.templates.axes import Axis
from kernels.templates.streams import Stream, lanes_for
from kernels.tensor.default import scheduled
from kernels.tensor.expression import Buffer, Cast, Expression
from kernels.tensor.interpret import interpret
from kernels.tensor.lower import lower
from kernels.tensor.show import show_nest
from tests.kernels.listings import difference, passing, perceptron
from tests.kernels.recorded.cases import FAMILIES, low_precision
from tests.kernels.recorded.narrow import narrow
from tests.kernels.recorded.nests import NESTS, PROGRAMS
from tests.kernels.recorded.quantized import quantized
from tests.kernels.recorded.record import code_lines, kernel_lines, template_lines
from tests.kernels.targets import NAMED, NAMES
from tests.kernels.tensor.drawn import whole_numbers
from tests.kernels.tensor.test_lower import run
from tests.kernels.test_emission import SIZE, I, operations

FOLDER = Path(__file__).parent
EACH = pytest.mark.parametrize(("target", "short"), list(zip(NAMED, NAMES, strict=True)), ids=NAMES)


def assert_recorded(name: str, lines: Sequence[str]) -> None:
    """Compare with the file of a name, line by line."""
    path, text = FOLDER / f"{name.replace(' ', '-')}.txt", "\n".join(lines) + "\n"
    if os.environ.get("RECORD") == "1":
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs; RECORD=1 writes it anew"


@EACH
@pytest.mark.parametrize("family", FAMILIES)
def test_templates(family: str, target: Target, short: str) -> None:
    lines = []
    for case in FAMILIES[family]():
        lines += [case.name, *template_lines(case.template, case.problem, target, case.weights)]
    assert_recorded(f"{family}.{short}", lines)


@EACH
def test_bytes(target: Target, short: str) -> None:
    lines = []
    for case in quantized():
        lines += [case.name, *template_lines(case.template, case.problem, target, case.weights)]
    assert_recorded(f"bytes.{short}", lines)


@EACH
def test_narrow_weights(target: Target, short: str) -> None:
    lines = []
    for case in narrow():
        lines += [case.name, *template_lines(case.template, case.problem, target, case.weights)]
    assert_recorded(f"narrow.{short}", lines)


def test_products_of_low_precision() -> None:
    target = x86_64_v4()
    able = replace(target, features=(*target.features, "+avx512vnni", "+avx512bf16"))
    lines = []
    for case in (*low_precision(), *quantized()):
        lines += [case.name, *template_lines(case.template, case.problem, able, case.weights)]
    assert_recorded("low precision", lines)


@EACH
def test_operations(target: Target, short: str) -> None:
    lines = []
    for dtype in DType:
        for value in operations(dtype):
            is_short = dtype.is_short or value.dtype.is_short
            if is_short and DType.F32 not in (dtype, value.dtype):
                continue  # by way of f32, or of a byte
            kind = f"cast to {value.dtype.value}" if isinstance(value, Cast) else getattr(value, "op", "select")
            (code,) = code_lines(_written(value, target))
            lines.append(f"{kind} of {dtype.value}: {code}")
    assert_recorded(f"operations.{short}", lines)


def _written(value: Expression, target: Target) -> Module:
    """y[i] = value, two vectors at a time and one that is cut."""
    module, lanes = Module(target), lanes_for((value,), target)
    read = {one.buffer for one in _loads(value)}
    given = [Operand(one.name, "input", one.dtype, SIZE) for one in sorted(read, key=lambda one: one.name)]
    store = Buffer("y", value.dtype, (SIZE,))[I]

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        stream = Stream(f, pointers, {}, Axis((I,)), lanes).prepare((value,), (store,))
        for several, valid in ((2, lanes), (1, 1)):
            leaves = stream.at(block, several, valid)
            leaves.store(emit_all(f, (value,), lanes, leaves)[0], store)

    return write_kernel(module, "written", [*given, Operand("y", "output", value.dtype, SIZE)], 1, body).module


def _loads(value: Expression) -> list[Expression]:
    below = [load for operand in value.operands for load in _loads(operand)]
    return [value, *below] if hasattr(value, "buffer") else below


@EACH
def test_tensor_programs(target: Target, short: str) -> None:
    lines = []
    for name, program in PROGRAMS.items():
        nest = scheduled(program(), target)
        lines += [name, *show_nest(nest).splitlines(), *kernel_lines(lower(nest, target), None)]
    assert_recorded(f"programs.{short}", lines)


@EACH
def test_nests_after_primitives(target: Target, short: str) -> None:
    lines = []
    for name, made in NESTS.items():
        nest = made()
        lines += [name, *show_nest(nest).splitlines(), *kernel_lines(lower(nest, target), None)]
    assert_recorded(f"nests.{short}", lines)


@pytest.mark.parametrize("name", NESTS)
def test_nests_compute_what_their_programs_say(name: str) -> None:
    nest = NESTS[name]()
    inputs = whole_numbers(nest.program)  # exact in any order
    found = run(lower(nest, host()), nest.program, inputs)
    for output, array in interpret(nest.program, inputs).items():
        np.testing.assert_array_equal(found[output], array)


def _listings(target: Target) -> list[tuple[Listing, bytes]]:
    layers = perceptron(target, rows=3)
    whole = bytes(len(layers.weights))
    return [(layers.listing, whole), (difference(target), b""), (passing(target, DType.I64), b"")]


@EACH
def test_interfaces(target: Target, short: str) -> None:
    lines = []
    for listing, weights in _listings(target):
        emitted = emit(listing, target, stored_weights(listing, weights))
        lines += [listing.name, f"  {emitted.description}"]
        lines += [f"  {line}" for module in emitted.modules for line in code_lines(module)]
    assert_recorded(f"interfaces.{short}", lines)


def test_programs_without_libraries() -> None:
    lines = []
    for listing, _ in _listings(aarch64()):
        program = standalone(listing, aarch64())
        lines += [
            f"{listing.name}: weights at {program.weights}, inputs at {program.inputs}, {program.read_bytes} bytes are "
            f"read, outputs at {program.outputs}, {program.written_bytes} bytes are written",
            *(f"  {line}" for module in program.modules for line in code_lines(module)),
        ]
    assert_recorded("standalone", lines)


def test_the_pool() -> None:
    lines = []
    for target, short in zip(NAMED, NAMES, strict=True):
        module = Module(target)
        write_pool(module)
        lines += [short, *(f"  {line}" for line in code_lines(module))]
    assert_recorded("pool", lines)

"""Small programs written by hand, with their answers in float64: what emission and bundles are tested with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.listing import ALIGNMENT, Argument, Claim, Listing, Place, Run, Ticketed, Wait
from kernels.target import Target
from kernels.templates import elementwise
from kernels.templates.elementwise import Elementwise, Output
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm import Gemm, build, candidates
from kernels.tensor.expression import Buffer, Variable, relu


@dataclass(frozen=True, slots=True)
class Written:
    """A listing, its weights, and the matrices and biases that they were made from."""

    listing: Listing
    weights: bytes
    layers: tuple[tuple[np.ndarray, np.ndarray], ...]

    def answer(self, x: np.ndarray) -> np.ndarray:
        """In float64; relu after every layer but the last."""
        value = x.astype(np.float64)
        for number, (matrix, bias) in enumerate(self.layers):
            value = value @ matrix + bias
            value = np.maximum(value, 0) if number < len(self.layers) - 1 else value
        return value

    def bound(self, x: np.ndarray) -> np.ndarray:
        """The error that float32 may make: half a unit per step of each sum, carried through the layers."""
        size, error = np.abs(x.astype(np.float64)), np.zeros(x.shape)
        for matrix, bias in self.layers:
            steps = (matrix.shape[0] + 2) * 2.0**-24
            size, error = size @ np.abs(matrix) + np.abs(bias), error @ np.abs(matrix)
            error = error + steps * size
        return error


def dense(name: str, rows: int, columns: int, depth: int, target: Target, *, positive: bool) -> Kernel:
    plain = Gemm(rows, columns, depth)
    total = ACCUMULATED[()] + Buffer("bias", DType.F32, (columns,))[plain.column]
    gemm = Gemm(rows, columns, depth, epilogue=Epilogue(relu(total) if positive else total))
    return build(gemm, candidates(gemm, target)[0], target, name)


def perceptron(
    target: Target, sizes: tuple[int, ...] = (16, 32, 10), rows: int = 1, seed: int = 0, name: str = "mlp"
) -> Written:
    """Dense layers through an arena, each with weights and a bias."""
    generator = np.random.default_rng(seed)
    kernels, runs, layers = [], [], []
    weights, arena = bytearray(), 0
    source = Place("input")
    for number, (depth, columns) in enumerate(itertools.pairwise(sizes)):
        last = number == len(sizes) - 2
        kernel = dense(f"dense{number}", rows, columns, depth, target, positive=not last)
        matrix = generator.standard_normal((depth, columns)).astype(np.float32)
        bias = generator.standard_normal(columns).astype(np.float32)
        packing = kernel.operand("b").packing
        assert packing is not None, "constant weights are packed"
        places = []
        for array in (packing.pack(matrix), bias):
            weights += bytes(-len(weights) % ALIGNMENT)
            places.append(Place("weights", len(weights)))
            weights += array.tobytes()
        target_place = Place("output") if last else Place("arena", arena)
        arena += 0 if last else -(-rows * columns * 4 // ALIGNMENT) * ALIGNMENT
        runs.append(Run(kernel.name, (source, *places, target_place)))
        kernels.append(kernel)
        layers.append((matrix, bias))
        source = target_place
    listing = Listing(
        name,
        (Argument("x", DType.F32, (rows, sizes[0])),),
        (Argument("y", DType.F32, (rows, sizes[-1])),),
        tuple(kernels),
        tuple(runs),
        arena,
        len(weights),
        in_turn(runs, arena),
    )
    return Written(listing, bytes(weights), tuple(layers))


def in_turn(runs: Sequence[Run], arena: int) -> Ticketed:
    """Several workers at one run after the other: each waits for the one before."""
    steps = itertools.chain.from_iterable((Claim(number), Wait(number)) for number in range(len(runs)))
    return Ticketed(tuple(steps), tuple(runs), arena)


def difference(target: Target, shape: tuple[int, int] = (3, 5), name: str = "difference") -> Listing:
    """delta = left - right, an elementwise kernel without weights and arena."""
    rows, columns = (Variable(f"i{position}", size) for position, size in enumerate(shape))
    left, right, delta = (Buffer(one, DType.F32, shape) for one in ("left", "right", "delta"))
    value = left[rows, columns] - right[rows, columns]
    problem = Elementwise((rows, columns), (Output(delta, value),))
    kernel = elementwise.build(problem, elementwise.candidates(problem, target)[0], target, "subtract")
    given = tuple(Argument(one, DType.F32, shape) for one in ("left", "right"))
    places = tuple(
        Place("output") if one.role == "output" else Place("input", 0, ("left", "right").index(one.name))
        for one in kernel.operands
    )
    return Listing(name, given, (Argument("delta", DType.F32, shape),), (kernel,), (Run("subtract", places),), 0, 0)


def passing(target: Target, dtype: DType, shape: tuple[int, int] = (3, 5), name: str = "passing") -> Listing:
    """y = x, of any type of elements."""
    axes = tuple(Variable(f"i{position}", size) for position, size in enumerate(shape))
    problem = Elementwise(axes, (Output(Buffer("y", dtype, shape), Buffer("x", dtype, shape)[axes]),))
    kernel = elementwise.build(problem, elementwise.candidates(problem, target)[0], target, "pass")
    run = Run("pass", (Place("input"), Place("output")))
    return Listing(name, (Argument("x", dtype, shape),), (Argument("y", dtype, shape),), (kernel,), (run,), 0, 0)

"""A matrix product: what is computed, and where its matrices lie."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.templates.epilogue import ACCUMULATED_DOUBLE, Epilogue
from kernels.templates.matrix import Matrix, dense, dense_batch
from kernels.templates.narrow import NARROW
from kernels.templates.tile import ProductArithmetic
from kernels.tensor.expression import Variable


class InvalidGemm(KernelsError):
    """A matrix product whose dims or strides do not fit."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """C[rows, columns] = epilogue(A[rows, depth] B[depth, columns]) for each index of `batch`.

    The epilogue's variables are `row`, `column` and `batch_variables`. The accumulated type is f32, i32 for "u8s8" and
    f64 for "f64". "rounded" is of float32 too: A, as a block reads it, and a constant B are rounded to bf16.
    """

    rows: int
    columns: int
    depth: int
    batch: tuple[int, ...] = ()
    a: Matrix | None = None  # None: dense, row-major
    b: Matrix | None = None
    c: Matrix | None = None
    constant_b: bool = True  # known when the program is compiled, and packed then
    epilogue: Epilogue = field(default_factory=Epilogue)
    arithmetic: ProductArithmetic = "f32"
    b_dtype: DType = DType.F32  # as a constant B of "f32" lies in memory: F16 and BF16 are widened to it

    def __post_init__(self) -> None:
        if self.arithmetic == "f64" and self.epilogue == Epilogue():
            object.__setattr__(self, "epilogue", Epilogue(ACCUMULATED_DOUBLE[()]))
        for name, rows, columns in (
            ("a", self.rows, self.depth), ("b", self.depth, self.columns), ("c", self.rows, self.columns)
        ):  # fmt: skip
            if getattr(self, name) is None:
                object.__setattr__(self, name, dense(rows, columns, self.batch))
            given: Matrix = getattr(self, name)
            if len(given.batch) != len(self.batch):
                raise InvalidGemm(f"matrix {name} has {len(given.batch)} batch strides for {len(self.batch)} dims.")
        if self.b_dtype is not DType.F32 and (
            self.b_dtype not in NARROW or not self.constant_b or self.arithmetic != "f32"
        ):
            raise InvalidGemm(f"B of {self.b_dtype.value} is no constant that a product of float32 widens.")
        if self.place_c.column != 1:
            raise InvalidGemm("the output's columns must lie side by side; swap A and B for a transposed output.")

    @property
    def row(self) -> Variable:
        """The epilogue's variable of rows."""
        return Variable("row", self.rows)

    @property
    def column(self) -> Variable:
        """The epilogue's variable of columns."""
        return Variable("column", self.columns)

    @property
    def batch_variables(self) -> tuple[Variable, ...]:
        """The epilogue's variables of the batch, outermost first."""
        return tuple(Variable(f"batch{position}", size) for position, size in enumerate(self.batch))

    @property
    def place_a(self) -> Matrix:
        """Where A lies."""
        assert self.a is not None, "set at construction"
        return self.a

    @property
    def place_b(self) -> Matrix:
        """Where B lies."""
        assert self.b is not None, "set at construction"
        return self.b

    @property
    def place_c(self) -> Matrix:
        """Where C lies."""
        assert self.c is not None, "set at construction"
        return self.c

    @property
    def matrices(self) -> int:
        """How many products there are."""
        return math.prod(self.batch)

    @property
    def matrices_of_b(self) -> int:
        """How many a constant B has, for all dims that it is not broadcast along. Raises InvalidGemm."""
        b = self.place_b
        sizes = tuple(size for size, stride in zip(self.batch, b.batch, strict=True) if stride)
        if tuple(filter(None, b.batch)) != dense_batch(sizes, b.apart):
            raise InvalidGemm("a constant B of a batch must hold its matrices one after the other.")
        return math.prod(sizes)

    @property
    def flops(self) -> int:
        """Multiplications and additions of all products."""
        return 2 * self.rows * self.columns * self.depth * self.matrices

"""Where the matrices of a batch lie in their storage."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.size import nothing


@dataclass(frozen=True, slots=True)
class Matrix:
    """Where a matrix of a batch lies in its storage: distances in elements."""

    row: int
    column: int = 1
    batch: tuple[int, ...] = ()
    offset: int = 0

    @property
    def apart(self) -> int:
        """How far two matrices that follow one another are; 0: there is one for all indices of the batch."""
        return next((stride for stride in reversed(self.batch) if stride), 0)

    def elements(self, rows: int, columns: int, batch: tuple[int, ...]) -> int:
        """How many elements the storage must have."""
        if nothing(rows, columns, *batch):
            return 0
        far = sum((size - 1) * step for size, step in zip(batch, self.batch, strict=True))
        return self.offset + far + (rows - 1) * self.row + (columns - 1) * self.column + 1


def dense(rows: int, columns: int, batch: tuple[int, ...]) -> Matrix:
    """A row-major matrix, and others of the batch after it."""
    return Matrix(columns, 1, dense_batch(batch, rows * columns))


def dense_batch(batch: tuple[int, ...], step: int) -> tuple[int, ...]:
    """Strides of a batch whose matrices follow one another at a distance of `step`."""
    strides = []
    for size in reversed(batch):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))

"""The last phase of a Winograd convolution: tiles of sums are transformed back, and the epilogue's results stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernels.llvm.function import Amount, Function, Parameter, Value
from kernels.templates.builder import apart
from kernels.templates.convolution.places import operands_at, output_at, variables_at
from kernels.templates.convolution.problem import OUTPUT
from kernels.templates.convolution.store import store_pixels
from kernels.templates.convolution.transform import product
from kernels.templates.convolution.winograd_kinds import Kind
from kernels.templates.convolution.winograd_parts import outputs_apart
from kernels.templates.convolution.winograd_sizes import WinogradSizes
from kernels.templates.epilogue import leaves_of, parameters_of
from kernels.templates.grid import start_of
from kernels.tensor.expression import Variable


class WinogradBack(WinogradSizes):
    """A builder that writes it."""

    def _back(
        self, f: Function, pointers: dict[str, Value], images: tuple[Value, Value, Value], sums: Value,
        rows: tuple[Value, Value], channels: tuple[Amount, Amount],
    ) -> None:  # fmt: skip
        """Transform some rows of tiles back and store what the epilogue makes of them, whatever the blocks are."""
        names = (OUTPUT, *(one.name for one in self.problem.epilogue.buffers))
        numbers: list[Amount] = [0 if one.is_constant else one for one in images]

        def write(
            inner: Function, sums: Value, image: Amount, plane: Amount, dense: Amount, first: Value, last: Value,
            begin: Value, end: Value, *addresses: Value,
        ) -> None:  # fmt: skip
            own = dict(zip(names, addresses, strict=True))
            self._write_back(inner, own, (image, plane, dense), sums, (first, last), (begin, end))

        addresses = [pointers[name] for name in names]
        vectors = [self._vector(f, one) for one in channels]
        apart(f, f"{self.name}_back", (sums, *numbers, *rows, *vectors, *addresses), write)

    def _write_back(
        self, f: Function, pointers: dict[str, Value], images: tuple[Amount, Amount, Amount], sums: Value,
        rows: tuple[Value, Value], vectors: tuple[Value, Value],
    ) -> None:  # fmt: skip
        problem, lanes = self.problem, self.lanes
        outer = (f.integer(images[0]), f.integer(images[1]), f.integer(images[2]))
        dense = outer[2]
        # Vectors of channels of the groups before: the last vectors of all groups together are not whole.
        before: Amount = 0 if self.groups == 1 else f.mul(dense, self.out_vectors)

        def all_of(valid: int) -> Callable[[Value, tuple[Value, ...]], None]:
            def vector(number: Value, _: tuple[Value, ...]) -> None:
                channel = f.mul(number, self.lanes)

                def tile(down: Kind, across: Kind, row: Value, column: Value, place: Value) -> None:
                    at = variables_at(
                        f, problem, outer, channel, self.width, self._first(f, 1, row), self._first(f, 2, column),
                    )  # fmt: skip
                    source = f.at(sums, f.add(f.mul(place, self.width_row), channel))
                    y, operands = output_at(f, problem, pointers[OUTPUT], at), operands_at(f, problem, pointers, at)
                    if down.at_border or across.at_border:
                        f.call(self._border_tile_function(valid), source, y, *operands, *self._exist(f, at))
                    else:
                        f.call(self._tile_function(down, across, valid), source, y, *operands)

                self._each_tile(f, rows, self.tiles, tile)

            return vector

        begin, end = vectors
        whole = problem.output.channels // lanes
        f.loop(begin, f.minimum(end, _less(f, whole, before)), 1, all_of(lanes))
        for number in range(whole, self.groups * self.out_vectors):
            valid = max(0, problem.output.channels - number * lanes)
            first_one, last_one = (_less(f, one, before) for one in (number, number + 1))
            f.loop(f.maximum(begin, first_one), f.minimum(end, last_one), 1, all_of(valid))

    def _exist(self, f: Function, at: Mapping[Variable, Value]) -> list[Value]:
        """How many rows and columns of a tile at a place an image of any sides has."""
        problem, counts = self.problem, []
        for axis, variable, made in zip((1, 2), problem.variables[3:5], self.made, strict=True):
            step = outputs_apart(problem, axis)
            left = f.maximum(f.sub(f.integer(problem.output.size[axis]), at[variable]), f.integer(0))
            exist = left if step == 1 else f.binary("udiv", f.add(left, step - 1), f.integer(step))
            counts.append(f.minimum(exist, f.integer(made.outputs)))
        return counts

    def _border_tile_function(self, valid: int) -> str:
        """f(sums, y, operands of the epilogue..., rows, columns): transform back, and store the outputs that exist."""
        name = f"{self.name}_tile_at_border_{valid}"
        if self.module.has(name):
            return name
        f = self._storing(name, Parameter("rows", "i64"), Parameter("columns", "i64"))
        steps = outputs_apart(self.problem, 1), outputs_apart(self.problem, 2)

        def store(row: int, column: int, value: Value) -> None:
            def write() -> None:
                leaves = leaves_of(f, self.problem.epilogue, self.problem.variables[5], self.lanes)
                pixels = [(row * steps[0], column * steps[1])]
                store_pixels(f, self.problem, leaves, f.parameter("y"), pixels, [value], (valid,))

            f.when(f.compare("ult", f.integer(column), f.parameter("columns")), write)

        for row, values in enumerate(self._outputs(f, *(one.outputs for one in self.made))):

            def write(row: int = row, values: Sequence[Value] = tuple(values)) -> None:
                for column, value in enumerate(values):
                    store(row, column, value)

            f.when(f.compare("ult", f.integer(row), f.parameter("rows")), write)
        f.finish()
        return name

    def _storing(self, name: str, *more: Parameter) -> Function:
        """A function of sums, the output and the operands of the epilogue, and more."""
        sums, y = Parameter("sums", "ptr", "noalias nocapture readonly"), Parameter("y", "ptr", "nocapture")
        return Function(self.module, name, (sums, y, *parameters_of(self.problem.epilogue), *more))

    def _outputs(self, f: Function, tall: int, wide: int) -> list[list[Value]]:
        """The first rows and columns of a tile's outputs, of the sums of its points at "sums"."""
        (rows, columns), (above, beside) = (one.size for one in self.made), self.output_matrices
        made = []
        for column in range(columns):
            places = [f.at(f.parameter("sums"), (row * columns + column) * self.width_point) for row in range(rows)]
            loaded: list[Value | None] = [f.load(self.kind, one, align=4 * self.lanes) for one in places]
            made.append(product(f, above[:tall], loaded))
        found = []
        for row in range(tall):
            values = product(f, beside[:wide], [one[row] for one in made])
            found.append([value or f.number(self.kind, 0) for value in values])
        return found

    def _vector(self, f: Function, piece: Amount) -> Value:
        """The first vector of a register tile of channels; for the one after the last, the end."""
        if isinstance(piece, int):
            return f.integer(0 if piece == 0 else self.out_vectors)
        return start_of(f, self.channels, piece)

    def _tile_function(self, down: Kind, across: Kind, valid: int) -> str:
        """f(sums, y, operands of the epilogue...): transform back and store the outputs that exist."""
        name = f"{self.name}_tile_{down.outputs}x{across.outputs}_{valid}"
        if self.module.has(name):
            return name
        f, steps = self._storing(name), (outputs_apart(self.problem, 1), outputs_apart(self.problem, 2))
        leaves = leaves_of(f, self.problem.epilogue, self.problem.variables[5], self.lanes)
        for row, values in enumerate(self._outputs(f, down.outputs, across.outputs)):
            pixels = [(row * steps[0], column * steps[1]) for column in range(across.outputs)]
            store_pixels(f, self.problem, leaves, f.parameter("y"), pixels, values, (valid,))
        f.finish()
        return name


def _less(f: Function, number: int, by: Amount) -> Value:
    return f.integer(number - by) if isinstance(by, int) else f.sub(f.integer(number), by)

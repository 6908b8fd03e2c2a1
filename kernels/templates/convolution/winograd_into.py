"""The first phase of a Winograd convolution: windows of the image are transformed into scratch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kernels.llvm.function import Function, Parameter, Value
from kernels.templates.builder import apart
from kernels.templates.convolution.taps import needed_of_place
from kernels.templates.convolution.transform import product
from kernels.templates.convolution.winograd_kinds import Kind, stored_of
from kernels.templates.convolution.winograd_parts import offset_of
from kernels.templates.convolution.winograd_sizes import WinogradSizes


class WinogradInto(WinogradSizes):
    """A builder that writes it."""

    def _planes_into(
        self, f: Function, x: Value, moved: Value, plane: Value, rows: tuple[Value, Value]
    ) -> tuple[Value, Value]:
        """Transform the windows in each plane that a kernel sees; returns the first of these, and the end."""
        problem, layout = self.problem, self.problem.input
        count, stride, dilation, pad = (
            one[0] for one in (problem.kernel, problem.strides, problem.dilations, problem.pads)
        )
        first, end = f.integer(0), f.integer(count)
        if self.some_planes:
            first, end = needed_of_place(f, problem, 0, plane, 1)
        begin = x
        if problem.output.size[0] > 1 or pad:
            begin = f.at(x, f.mul(f.add(f.mul(plane, stride), -pad), layout.plane_stride))
        if count == 1:
            self._into(f, begin, moved, rows)
        else:
            each = self.depth // count

            def one(tap: Value, _: tuple[Value, ...]) -> None:
                source = f.at(begin, f.mul(tap, dilation * layout.plane_stride))
                self._into(f, source, f.at(moved, f.mul(tap, each)), rows)

            f.loop(first, end, 1, one)
        return first, end

    def _into(self, f: Function, x: Value, moved: Value, rows: tuple[Value, Value]) -> None:
        """Transform the windows of some lines of tiles, by each part of a kernel.

        They have functions that serve blocks of any size.
        """
        down, across = self.parts
        parts = [(row, column) for row in range(down) for column in range(across)]
        each = self.depth // self.problem.kernel[0] // len(parts)
        for number, part in enumerate(parts):
            name = f"{self.name}_into" + (f"_{part[0]}_{part[1]}" if len(parts) > 1 else "")
            apart(f, name, (x, f.at(moved, number * each), *rows), partial(self._write_into, part))

    def _write_into(self, of: tuple[int, int], f: Function, x: Value, moved: Value, *rows: Value) -> None:
        problem, layout = self.problem, self.problem.input
        above, beside = (
            problem.pads[axis] - offset_of(problem, axis, taps, number)
            for axis, number, (_, taps) in zip((1, 2), of, self.candidate.sides, strict=True)
        )
        _, down_step, across_step = problem.strides
        corner = layout.position(0, 0, layout.before) - above * layout.row_stride - beside * layout.column_stride
        (begin, _), (left_begin, _) = stored_of(problem, 1), stored_of(problem, 2)

        def vectors(block: Value, _: tuple[Value, ...]) -> None:
            def vector(part: Value, valid: int = self.lanes) -> None:
                at = f.at(x, f.add(f.mul(block, layout.block_stride), f.mul(part, self.lanes)))
                to = f.at(moved, f.mul(f.add(f.mul(block, self.in_block), part), self.lanes))

                def tile(down: Kind, across: Kind, row: Value, column: Value, number: Value) -> None:
                    first, left = self._first(f, 1, row), self._first(f, 2, column)
                    first, left = f.mul(first, down_step), f.mul(left, across_step)
                    place = f.add(f.mul(first, layout.row_stride), f.mul(left, layout.column_stride))
                    source, target = f.at(at, f.add(place, corner)), f.at(to, f.mul(number, self.depth_row))
                    if down.at_border or across.at_border:
                        corner_at = f.sub(first, above + begin), f.sub(left, beside + left_begin)
                        f.call(self._border_function(valid), source, target, *corner_at)
                        return
                    top = [f.sub(first, above + begin)] if self.any_row else []
                    f.call(self._window_function(down, across, of[0], valid), source, target, *top)

                self._each_tile(f, rows, [kinds[one] for kinds, one in zip(self.windows, of, strict=True)], tile)

            f.loop(0, self.in_block - bool(self.rest), 1, lambda part, _: vector(part))
            if self.rest:
                vector(f.integer(self.in_block - 1), self.rest)

        f.loop(0, self.in_blocks, 1, vectors)

    def _window_function(self, down: Kind, across: Kind, part: int, valid: int) -> str:
        """f(x, moved): transform the window whose first element would lie at `x`; only what is stored is read.

        Of a vector `valid` lanes are channels. f(x, moved, top) where rows differ: `top` rows from the first one that
        is stored lies that of the window.
        """
        low, high = self.inside[part] if self.any_row else (down.low, down.high)
        name = f"{self.name}_window_{low}{high}_{across.low}{across.high}{self._lanes_said(valid)}"
        if self.module.has(name):
            return name
        given = [Parameter("x", "ptr", "noalias nocapture readonly"), Parameter("moved", "ptr", "noalias nocapture")]
        f = Function(self.module, name, [*given, Parameter("top", "i64")] if self.any_row else given)
        layout, tall = self.problem.input, self.made[0].size
        step, beside_step = (self.problem.strides[axis] * self.problem.dilations[axis] for axis in (1, 2))
        rows = {row: f.at(f.parameter("x"), row * step * layout.row_stride) for row in range(down.low, down.high)}
        if self.any_row:
            zeros = self.module.constant(f"{self.name}_zeros", "float", ["0.0"] * self.zeros)
            begin, end = stored_of(self.problem, 1)
            for row in sorted(set(rows) - set(range(low, high))):
                is_stored = f.compare("ult", f.add(f.parameter("top"), row * step), f.integer(end - begin))
                rows[row] = f.select(is_stored, rows[row], Value((zeros,), "ptr"))

        def loaded(column: int) -> list[Value | None]:
            found: list[Value | None] = [None] * tall
            if across.low <= column < across.high:
                for row, at in rows.items():
                    found[row] = self._loaded(f, f.at(at, column * beside_step * layout.column_stride), valid)
            return found

        self._write_points(f, loaded)
        f.finish()
        return name

    def _border_function(self, valid: int) -> str:
        """f(x, moved, top, left): the same of a window that may reach beyond an image of any sides.

        Its first element lies `top` rows and `left` columns from the first one that is stored.
        """
        name = f"{self.name}_window_at_border{self._lanes_said(valid)}"
        if self.module.has(name):
            return name
        places = [Parameter("top", "i64"), Parameter("left", "i64")]
        given = [Parameter("x", "ptr", "noalias nocapture readonly"), Parameter("moved", "ptr", "noalias nocapture")]
        f = Function(self.module, name, [*given, *places])
        layout = self.problem.input
        zeros = Value((self.module.constant(f"{self.name}_zeros", "float", ["0.0"] * self.zeros),), "ptr")
        strides = layout.row_stride, layout.column_stride
        stored: list[list[Value]] = []  # of each row and each column whether it is
        for axis, first, made in zip((1, 2), places, self.made, strict=True):
            step = self.problem.strides[axis] * self.problem.dilations[axis]
            begin, end = stored_of(self.problem, axis)
            before = f.parameter(first.name)
            stored.append(
                [f.compare("ult", f.add(before, one * step), f.integer(end - begin)) for one in range(made.size)]
            )
        steps = [self.problem.strides[axis] * self.problem.dilations[axis] for axis in (1, 2)]

        def loaded(column: int) -> list[Value | None]:
            at = f.at(f.parameter("x"), f.mul(f.integer(column * steps[1]), strides[1]))
            found: list[Value | None] = []
            for row in range(self.made[0].size):
                is_stored = f.binary("and", stored[0][row], stored[1][column])
                address = f.at(at, f.mul(f.integer(row * steps[0]), strides[0]))
                found.append(self._loaded(f, f.select(is_stored, address, zeros), valid))
            return found

        self._write_points(f, loaded)
        f.finish()
        return name

    def _lanes_said(self, valid: int) -> str:
        return "" if valid == self.lanes else f"_{valid}_lanes"

    def _loaded(self, f: Function, address: Value, valid: int) -> Value:
        if valid == self.lanes:
            return f.load(self.kind, address)
        return f.masked_load(self.kind, address, f.first_lanes(valid, self.lanes))

    def _write_points(self, f: Function, loaded: Callable[[int], list[Value | None]]) -> None:
        """Transform a window of which `loaded` gives each column, and store its points."""
        (above, beside), (tall, wide) = self.window_matrices, (one.size for one in self.made)
        # Down the columns first: of each only one column's vectors are alive at a time.
        columns = [product(f, above, loaded(column)) for column in range(wide)]
        for row in range(tall):
            moved = product(f, beside, [columns[column][row] for column in range(wide)])
            for column, value in enumerate(moved):
                target = f.at(f.parameter("moved"), (row * wide + column) * self.depth_point)
                f.store(value or f.number(self.kind, 0), target, align=4 if self.rest else 4 * self.lanes)

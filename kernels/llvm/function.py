"""Writing one LLVM function as text: its parameters, its loops and branches around instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels.llvm.instructions import Instructions
from kernels.llvm.module import Module
from kernels.llvm.value import Amount, Value, joined

__all__ = ["Amount", "Body", "Function", "Parameter", "Value", "joined"]

Body = Callable[[Value, tuple[Value, ...]], Sequence[Value] | None]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A function's parameter; `attributes` such as "noalias readonly"."""

    name: str
    type: str = "ptr"
    attributes: str = ""


class Function(Instructions):
    """Collects the instructions of one function; `finish` adds it to its module.

    An internal function that reads sizes of the run has one more parameter for them, which `call` fills.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        parameters: Sequence[Parameter],
        *,
        exported: bool = False,
        small: bool = False,
        result: str = "void",
    ) -> None:
        super().__init__(module)
        self.name = name
        self.result = result
        self.parameters = tuple(parameters)
        self.exported = exported
        self.small = small  # rather than fast: it calls what takes the time
        self._reads_sizes = False  # itself, from where it is told

    def parameter(self, name: str) -> Value:
        """A parameter by its name."""
        for one in self.parameters:
            if one.name == name:
                return Value((f"%{name}",), one.type)
        raise AssertionError(f"no parameter '{name}'")

    def finish(self) -> None:
        """Close the function and add it to its module."""
        if self.result == "void":
            self._lines.append("  ret void")
        if self.sizes is not None and not self._reads_sizes and not self.exported:
            self.parameters = (*self.parameters, Parameter("sizes", "ptr", "noalias nocapture readonly"))
            self.module.sized[self.name] = self.dims_read
        given = ", ".join(f"{p.type} {p.attributes} %{p.name}".replace("  ", " ") for p in self.parameters)
        linkage = "define" if self.exported else "define internal fastcc"
        attributes = "#0" if self.exported else "#2" if self.small else "#1"
        head = f"{linkage} {self.result} @{self.name}({given}) {attributes} {{\nentry:"
        self.module.add(self.name, "\n".join((head, *self._head, *self._lines, "}")))

    def give(self, value: Value) -> None:
        """Return a value."""
        self.line(f"ret {value.type} {value.text}")

    def read_sizes(self, table: Value, place: int) -> None:
        """Say that the sizes' address is a table's pointer of this number."""
        at = f"getelementptr inbounds ptr, ptr {table.text}, i64 {place}"
        self._head[:0] = [f"  %sizes.at = {at}", "  %sizes = load ptr, ptr %sizes.at, align 8"]
        self._reads_sizes = True

    def find_sizes(self, record: Value, offset: int) -> None:
        """Say that the sizes lie so many bytes after a parameter's address; before anything reads them."""
        self._head.append(f"  %sizes = getelementptr inbounds i8, ptr {record.text}, i64 {offset}")
        self._reads_sizes = True

    def call(self, name: str, *operands: Value, result: str = "void") -> Value | None:
        """Call a function of this module."""
        if name in self.module.sized:
            operands = (*operands, self.sizes_of_run(self.module.sized[name]))
        given = ", ".join(f"{operand.type} {operand.text}" for operand in operands)
        if result == "void":
            self.line(f"call fastcc void @{name}({given})")
            return None
        return self.value(result, f"call fastcc {result} @{name}({given})")

    def loop(
        self, start: Amount, stop: Amount, step: int, body: Body, carried: Sequence[Value] = ()
    ) -> tuple[Value, ...]:
        """for i in range(start, stop, step): carried = body(i, carried). Returns what is carried at the end.

        A loop of constant bounds that runs once is written without a jump. The counter is an i64, or of the type of the
        bounds that are values.
        """
        if isinstance(start, int) and isinstance(stop, int):
            if start >= stop:
                return tuple(carried)
            if start + step >= stop:
                return tuple(body(self.integer(start), tuple(carried)) or ())
        kind = next((one.type for one in (start, stop) if isinstance(one, Value)), "i64")
        first, last = (self.number(kind, one) if isinstance(one, int) else self.integer(one) for one in (start, stop))
        before, head, after = self._block, self.fresh("loop"), self.fresh("end")
        known = isinstance(start, int) and isinstance(stop, int)
        if known:
            self.line(f"br label %{head}")
        else:
            some = self.compare("slt", first, last)
            self.line(f"br i1 {some.text}, label %{head}, label %{after}")
        self.label(head)
        mark = len(self._lines)  # the phis need the names that the body makes
        counter = Value((f"%{head}.i",), kind)
        phis = [
            Value(tuple(f"%{head}.c{n}.{p}" for p in range(len(value.parts))), value.type)
            for n, value in enumerate(carried)
        ]
        results = tuple(body(counter, tuple(phis)) or ())
        assert len(results) == len(carried), "a loop's body gives back what it carries"
        following = self.value(kind, f"add nuw nsw {kind} {counter.text}, {step}")
        more = self.compare("slt", following, last)
        back = self._block
        self.line(f"br i1 {more.text}, label %{head}, label %{after}, !llvm.loop !0")
        phi_lines = [f"  {counter.text} = phi {kind} [ {first.text}, %{before} ], [ {following.text}, %{back} ]"]
        for phi, initial, final in zip(phis, carried, results, strict=True):
            for name, one, other in zip(phi.parts, _spread(initial, phi), _spread(final, phi), strict=True):
                phi_lines.append(f"  {name} = phi {phi.type} [ {one}, %{before} ], [ {other}, %{back} ]")
        self._lines[mark:mark] = phi_lines
        self.label(after)
        if known:
            return results
        merged = []
        for phi, initial, final in zip(phis, carried, results, strict=True):
            names = []
            for one, other in zip(_spread(initial, phi), _spread(final, phi), strict=True):
                names.append(self.value(phi.type, f"phi {phi.type} [ {one}, %{before} ], [ {other}, %{back} ]").text)
            merged.append(Value(tuple(names), phi.type))
        return tuple(merged)

    def switch(self, value: Value, cases: Sequence[int], body: Callable[[int], None]) -> None:
        """body(case) for the case that an i64 is equal to; nothing where it is none of them."""
        after = self.fresh("switched")
        labels = {case: self.fresh("case") for case in cases}
        table = " ".join(f"i64 {case}, label %{label}" for case, label in labels.items())
        self.line(f"switch i64 {value.text}, label %{after} [ {table} ]")
        for case, label in labels.items():
            self.label(label)
            body(case)
            self.line(f"br label %{after}")
        self.label(after)

    def when(
        self,
        condition: Value,
        yes: Callable[[], Sequence[Value] | None],
        no: Callable[[], Sequence[Value] | None] | None = None,
    ) -> tuple[Value, ...]:
        """if condition: yes() else: no(); returns the values that the taken side gives."""
        first, second, after = self.fresh("then"), self.fresh("else"), self.fresh("fi")
        self.line(f"br i1 {condition.text}, label %{first}, label %{second}")
        sides = []
        for label, side in ((first, yes), (second, no)):
            self.label(label)
            given = tuple((side() if side is not None else None) or ())
            sides.append((given, self._block))
            self.line(f"br label %{after}")
        self.label(after)
        (one, from_one), (other, from_other) = sides
        merged = []
        for left, right in zip(one, other, strict=True):
            names = [
                self.value(left.type, f"phi {left.type} [ {a}, %{from_one} ], [ {b}, %{from_other} ]").text
                for a, b in zip(left.parts, right.parts, strict=True)
            ]
            merged.append(Value(tuple(names), left.type))
        return tuple(merged)


def _spread(value: Value, like: Value) -> tuple[str, ...]:
    return value.parts if len(value.parts) == len(like.parts) else value.parts * len(like.parts)

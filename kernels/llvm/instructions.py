"""Instructions as text, one after the other, with typed values.

A `Value` may stand for several independent vectors of one type: arithmetic on it emits one instruction for each. A
formula written once thus runs on several vectors side by side, which hides the latency of long chains of operations.
A value of one vector combines with values of several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernels.llvm import types
from kernels.llvm.module import Module
from kernels.llvm.value import Amount, Value, joined
from kernels.size import Atom, Dim, Size, as_size, is_free


class Instructions:
    """Collects what a function does: constants, arithmetic, conversions, memory.

    Where a number is a `Size`, the sizes of the run are read: `sizes`, the address of an int64 for each free dim.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.sizes: Value | None = None
        self.dims_read = 0  # sizes that the function, and what it calls, reads
        self._lines: list[str] = []
        self._count = 0
        self._block = "entry"
        self._head: list[str] = []  # instructions before all others: numbers of the run
        self._known: dict[Size | Atom, Value] = {}

    # -- raw text ---------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """An instruction without a result."""
        self._lines.append(f"  {text}")

    def value(self, kind: str, text: str) -> Value:
        """An instruction with a result of the given type."""
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {text}")
        return Value((name,), kind)

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self._lines.append(f"{name}:")
        self._block = name

    def fresh(self, stem: str) -> str:
        """A label that is not used yet."""
        self._count += 1
        return f"{stem}{self._count}"

    # -- constants --------------------------------------------------------------------------------------------------

    def number(self, kind: str, value: float | int | bool) -> Value:
        """A constant of a type, in every lane."""
        return Value((types.constant(kind, value),), kind, True)

    def integer(self, value: Value | Size | int) -> Value:
        """An i64: a constant, a number that the run knows, or the value as it is."""
        size = as_size(value)
        if size is not None:
            return self._sized(size)
        return value if isinstance(value, Value) else Value((str(value),), "i64", True)

    def _sized(self, size: Size) -> Value:
        """A number of the run; its instructions stand where the function begins, so that they serve all of it."""
        if size not in self._known:
            body, self._lines = self._lines, self._head
            total = self.integer(0)
            for product, factor in size.terms:
                value = self.integer(1)
                for atom in product:
                    value = self.mul(value, self._atom(atom))
                total = self.add(total, self.mul(value, factor))
            self._known[size] = total
            self._lines = body
        return self._known[size]

    def _atom(self, atom: Atom) -> Value:
        if atom not in self._known:
            if isinstance(atom, Dim):
                self._known[atom] = self.load("i64", self.at(self.sizes_of_run(atom.number + 1), atom.number, "i64"))
            else:
                left, right = self.integer(atom.left), self.integer(atom.right)
                match atom.kind:
                    case "quotient":
                        self._known[atom] = self.binary("udiv", left, right)
                    case "least":
                        self._known[atom] = self.minimum(left, right)
                    case "greatest":
                        self._known[atom] = self.maximum(left, right)
        return self._known[atom]

    def sizes_of_run(self, count: int) -> Value:
        """The address of the sizes of a run, of which the first `count` are read."""
        self.dims_read = max(self.dims_read, count)
        if self.sizes is None:
            self.sizes = Value(("%sizes",), "ptr")
        return self.sizes

    # -- arithmetic -------------------------------------------------------------------------------------------------

    def each(self, kind: str, text: Callable[..., str], *operands: Value) -> Value:
        """One instruction per part; operands of one part serve all."""
        given = [operand.parts for operand in operands]
        count = max(map(len, given), default=1)
        if count == 1:
            return self.value(kind, text(*[parts[0] for parts in given]))
        several = [parts if len(parts) > 1 else parts * count for parts in given]
        return Value(tuple([self.value(kind, text(*one)).parts[0] for one in zip(*several, strict=True)]), kind)

    def binary(self, name: str, left: Value, right: Value) -> Value:
        """An instruction of two operands of one type, by LLVM's name."""
        assert left.type == right.type, f"{name} of {left.type} and {right.type}"
        return self.each(left.type, lambda a, b: f"{name} {left.type} {a}, {b}", left, right)

    def add(self, left: Value, right: Amount) -> Value:
        """left + right."""
        return self._arithmetic("fadd", "add", left, right)

    def sub(self, left: Value, right: Amount) -> Value:
        """left - right."""
        return self._arithmetic("fsub", "sub", left, right)

    def mul(self, left: Value, right: Amount) -> Value:
        """left * right."""
        return self._arithmetic("fmul", "mul", left, right)

    def div(self, left: Value, right: Value, *, signed: bool = True) -> Value:
        """left / right; integers truncate towards zero."""
        return self.binary("fdiv" if types.is_float(left.type) else "sdiv" if signed else "udiv", left, right)

    def _arithmetic(self, floating: str, integral: str, left: Value, right: Amount) -> Value:
        if types.is_float(left.type):
            assert isinstance(right, Value), "a float is combined with a value"
            return self.binary(floating, left, right)
        if is_free(right):
            assert left.type == "i64", "sizes are of 64 bits"
            right = self.integer(right)
        other = self.number(left.type, right) if isinstance(right, int) else right
        folded = _folded(integral, left, other)
        return folded if folded is not None else self.binary(integral, left, other)

    def neg(self, operand: Value) -> Value:
        """-operand."""
        if types.is_float(operand.type):
            return self.each(operand.type, lambda a: f"fneg {operand.type} {a}", operand)
        return self.sub(self.number(operand.type, 0), operand)

    def fma(self, left: Value, right: Value, addend: Value) -> Value:
        """left * right + addend, rounded once where the architecture does that."""
        architecture = self.module.target.architecture
        if not architecture.is_fused or (architecture.is_bare and types.element(left.type) == "double"):
            return self.add(self.mul(left, right), addend)
        return self.intrinsic("llvm.fma", left.type, left, right, addend)

    def maximum(self, left: Value, right: Value, *, signed: bool = True) -> Value:
        """The larger one; NaN when either is NaN."""
        return self._extreme("ogt", "sgt" if signed else "ugt", left, right)

    def minimum(self, left: Value, right: Value, *, signed: bool = True) -> Value:
        """The smaller one; NaN when either is NaN."""
        return self._extreme("olt", "slt" if signed else "ult", left, right)

    def _extreme(self, ordered: str, integral: str, left: Value, right: Value) -> Value:
        # select(c > x, c, x) is one instruction of x86 that yields its second operand, x, when one is NaN.
        if not types.is_float(left.type):
            return self.select(self.compare(integral, left, right), left, right)
        if left.is_constant:
            return self.select(self.compare(ordered, left, right), left, right)
        found = self.select(self.compare(ordered, right, left), right, left)
        if right.is_constant:
            return found
        return self.select(self.compare("uno", right, right), right, found)

    def compare(self, predicate: str, left: Value, right: Value) -> Value:
        """An i1 per lane; predicates as in LLVM: "olt" and the like for floats, "slt" for integers."""
        kind = types.with_element(left.type, "i1")
        name = "fcmp" if types.is_float(left.type) else "icmp"
        return self.each(kind, lambda a, b: f"{name} {predicate} {left.type} {a}, {b}", left, right)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """`yes` in the lanes where the condition holds, else `no`."""
        kinds = condition.type, yes.type
        return self.each(
            yes.type, lambda c, a, b: f"select {kinds[0]} {c}, {kinds[1]} {a}, {kinds[1]} {b}", condition, yes, no
        )

    def intrinsic(self, name: str, kind: str, *operands: Value) -> Value:
        """An intrinsic that is overloaded on its result's type alone: llvm.sqrt becomes llvm.sqrt.v16f32."""
        full = f"{name}.{types.suffix(kind)}"
        return self.call_outside(full, kind, *operands)

    def call_outside(self, name: str, kind: str, *operands: Value) -> Value:
        """Call an intrinsic or an outside function, declared on the way."""
        self.module.declare(name, kind, [operand.type for operand in operands])
        given = [operand.type for operand in operands]

        def text(*parts: str) -> str:
            return f"call {kind} @{name}({', '.join([f'{k} {p}' for k, p in zip(given, parts, strict=True)])})"

        return self.each(kind, text, *operands)

    # -- conversions ------------------------------------------------------------------------------------------------

    def convert(self, name: str, kind: str, operand: Value) -> Value:
        """A conversion by LLVM's name (sext, fpext, bitcast, ...) to a type of as many lanes."""
        if operand.type == kind:
            return operand
        return self.each(kind, lambda a: f"{name} {operand.type} {a} to {kind}", operand)

    def splat(self, operand: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        if lanes == 1:
            return operand
        if operand.is_constant:
            kind = types.vector(operand.type, lanes)
            return Value((f"splat ({operand.type} {operand.text})",), kind, True)
        kind = types.vector(operand.type, lanes)
        put = self.each(kind, lambda a: f"insertelement {kind} poison, {operand.type} {a}, i64 0", operand)
        return self.each(
            kind, lambda a: f"shufflevector {kind} {a}, {kind} poison, <{lanes} x i32> zeroinitializer", put
        )

    def shuffle(self, left: Value, right: Value, order: Sequence[int]) -> Value:
        """Lanes of two vectors by number; those of `right` are counted after those of `left`."""
        kind = types.vector(types.element(left.type), len(order))
        mask = f"<{len(order)} x i32> <{', '.join(f'i32 {one}' if one >= 0 else 'i32 poison' for one in order)}>"
        return self.each(kind, lambda a, b: f"shufflevector {left.type} {a}, {right.type} {b}, {mask}", left, right)

    def extract(self, operand: Value, lane: Amount) -> Value:
        """One lane."""
        if types.lanes(operand.type) == 1:
            return operand
        at = self.integer(lane)
        return self.each(
            types.element(operand.type), lambda a: f"extractelement {operand.type} {a}, i64 {at.text}", operand
        )

    def insert(self, operand: Value, one: Value, lane: int) -> Value:
        """The vector with one lane replaced."""
        return self.each(
            operand.type, lambda a, b: f"insertelement {operand.type} {a}, {one.type} {b}, i64 {lane}", operand, one
        )

    def reduce(self, name: str, operand: Value) -> Value:
        """All lanes of all parts combined: "fadd", "fmul", "add", "mul", "maximum", "minimum" (of floats, NaN wins),
        "smax", "smin", "umax", "umin", "and", "or"."""
        while len(operand.parts) > 1:
            halves = operand.split()
            pairs = [self.combine(name, a, b) for a, b in zip(halves[::2], halves[1::2], strict=False)]
            operand = joined([*pairs, *halves[len(pairs) * 2 :]])
        count = types.lanes(operand.type)
        while count > 1:
            half = count // 2
            low = self.shuffle(operand, operand, range(half))
            high = self.shuffle(operand, operand, range(half, 2 * half))
            rest = self.extract(operand, count - 1) if count % 2 else None
            if half == 1:
                low, high = self.extract(operand, 0), self.extract(operand, 1)
            operand = self.combine(name, low, high)
            if rest is not None:
                assert half == 1, "only three lanes may leave one over"
                operand = self.combine(name, operand, rest)
            count = half
        return operand

    def combine(self, name: str, left: Value, right: Value) -> Value:
        """Two values by a reduction's name."""
        if name == "maximum":
            return self.maximum(left, right)
        if name == "minimum":
            return self.minimum(left, right)
        if name in ("smax", "smin", "umax", "umin"):
            return self.select(self.compare(name[0] + ("gt" if name[2] == "a" else "lt"), left, right), left, right)
        return self.binary(name, left, right)

    # -- memory -----------------------------------------------------------------------------------------------------

    def at(self, base: Value, offset: Amount, kind: str = "float") -> Value:
        """The address `offset` elements of a type after `base`."""
        if isinstance(offset, int):
            if offset == 0:
                return base
            return self.value("ptr", f"getelementptr inbounds {kind}, ptr {base.text}, i64 {offset}")
        offset = self.integer(offset)
        return self.value("ptr", f"getelementptr inbounds {kind}, ptr {base.text}, i64 {offset.text}")

    def load(self, kind: str, address: Value, *, align: int | None = None) -> Value:
        """A value from memory; without `align`, that of one element."""
        return self.value(kind, f"load {kind}, ptr {address.text}, align {align or self._bytes(kind)}")

    def store(self, operand: Value, address: Value, *, align: int | None = None) -> None:
        """A value into memory."""
        self.line(
            f"store {operand.type} {operand.text}, ptr {address.text}, align {align or self._bytes(operand.type)}"
        )

    def _bytes(self, kind: str) -> int:
        return self.module.target.architecture.pointer if kind == "ptr" else types.bits(kind) // 8

    def first_lanes(self, count: Amount, lanes: int) -> Value:
        """An i1 per lane: true in the first `count` of them."""
        kind = types.vector("i1", lanes)
        if isinstance(count, int):
            return Value((types.constant_lanes(kind, [lane < count for lane in range(lanes)]),), kind, True)
        each = types.vector("i64", lanes)
        numbers = Value((types.constant_lanes(each, list(range(lanes))),), each, True)
        return self.compare("ult", numbers, self.splat(self.integer(count), lanes))

    def masked_load(self, kind: str, address: Value, mask: Value, *, otherwise: Value | None = None) -> Value:
        """The lanes of the mask from memory, the others from `otherwise` (none: zero); they are not touched."""
        name = f"llvm.masked.load.{types.suffix(kind)}.p0"
        self.module.declare(name, kind, ["ptr", "i32", mask.type, kind])
        rest = "zeroinitializer" if otherwise is None else otherwise.text
        align = types.bits(kind) // 8
        return self.value(
            kind, f"call {kind} @{name}(ptr {address.text}, i32 {align}, {mask.type} {mask.text}, {kind} {rest})"
        )

    def masked_store(self, operand: Value, address: Value, mask: Value) -> None:
        """The lanes of the mask into memory; the other addresses are not touched."""
        name = f"llvm.masked.store.{types.suffix(operand.type)}.p0"
        self.module.declare(name, "void", [operand.type, "ptr", "i32", mask.type])
        align = types.bits(operand.type) // 8
        self.line(
            f"call void @{name}({operand.type} {operand.text}, ptr {address.text}, i32 {align}, "
            f"{mask.type} {mask.text})"
        )

    def store_lanes(self, operand: Value, address: Value, count: int) -> None:
        """The first `count` lanes into memory: words by a mask, smaller elements in pieces of powers of two.

        Only AVX-512 has masks for those, and LLVM 22 stores four bytes where one lane of a truncated vector is meant.
        """
        lanes = types.lanes(operand.type)
        if count == lanes:
            self.store(operand, address)
            return
        if types.bits(operand.type) >= 32:
            if count:
                self.masked_store(operand, address, self.first_lanes(count, lanes))
            return
        start, size = 0, lanes // 2
        while start < count:
            if start + size <= count:
                whole = range(start, start + size)
                part = self.shuffle(operand, operand, whole) if size > 1 else self.extract(operand, start)
                self.store(part, self.at(address, start, types.element(operand.type)))
                start += size
            else:
                size //= 2

    def prefetch(self, address: Value, *, locality: int = 3) -> None:
        """Ask for a line early; locality 3 is the nearest cache. Any address is allowed."""
        if self.module.target.architecture.is_bare:
            return
        self.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
        self.line(f"call void @llvm.prefetch.p0(ptr {address.text}, i32 0, i32 {locality}, i32 1)")


def _folded(name: str, left: Value, right: Value) -> Value | None:
    """The result of integer arithmetic that needs no instruction; None when it needs one."""
    if types.lanes(left.type) > 1 or len(left.parts) > 1 or len(right.parts) > 1:
        return None
    if left.is_constant and right.is_constant:
        a, b = int(left.text), int(right.text)
        return Value((str(a + b if name == "add" else a - b if name == "sub" else a * b),), left.type, True)
    if right.is_constant and right.text == ("1" if name == "mul" else "0"):
        return left
    if left.is_constant and name != "sub" and left.text == ("1" if name == "mul" else "0"):
        return right
    if name == "mul" and "0" in (left.text if left.is_constant else "", right.text if right.is_constant else ""):
        return Value(("0",), left.type, True)
    return None

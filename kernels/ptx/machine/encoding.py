"""From a kernel's records to rows of numbers: slots for registers and constants, calls, where lanes meet again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from kernels.ptx.machine import numbers as n
from kernels.ptx.machine.code import Code, ParameterSlot
from kernels.ptx.machine.flow import meeting
from kernels.ptx.machine.grammar import (
    Address,
    Immediate,
    NotPtx,
    PtxFunction,
    PtxGroup,
    PtxInstruction,
    PtxLabel,
    PtxModule,
    PtxOperand,
    PtxTable,
    PtxVariable,
    Register,
    Symbol,
)
from kernels.ptx.machine.reading import BYTES

Family = Callable[["Encoder", PtxInstruction], None]
_LoadPart = tuple[int, int]  # of a parameter: offset and bytes


def encode(module: PtxModule, kernel: str, addresses: Mapping[str, int], families: Mapping[str, Family]) -> Code:
    """A kernel of a module; `addresses` are those of its global and constant variables. Raises NotPtx."""
    function = module.functions.get(kernel)
    if function is None or not function.entry:
        entries = ", ".join(sorted(name for name, one in module.functions.items() if one.entry))
        raise NotPtx(f"The module has no entry {kernel!r}; it has {entries or 'none'}.")
    return Encoder(module, function, addresses, families).code()


class Encoder:
    """What is known while a kernel is encoded; families of instructions write rows with it."""

    def __init__(
        self, module: PtxModule, entry: PtxFunction, addresses: Mapping[str, int], families: Mapping[str, Family]
    ) -> None:
        self._module, self._entry, self._families = module, entry, families
        self._addresses = dict(addresses)
        self._rows: list[list[int]] = []
        self._origins: list[tuple[PtxFunction, PtxInstruction | None]] = []
        self._slots: dict[object, int] = {}
        self._constants: dict[int, int] = {}
        self._parameters: dict[tuple[str, int, int], int] = {}
        self._starts: dict[str, int] = {}
        self._calls: list[tuple[int, str]] = []
        self._waiting: list[PtxFunction] = [entry]
        self._shared = self._local = 0
        self._granule = 4
        self.function = entry
        self.instruction: PtxInstruction | None = None

    def code(self) -> Code:
        """The whole kernel."""
        for variable in sorted(self._module.variables, key=lambda one: not one.count):
            self._place(variable, "")
        self._refuse_recursion(self._entry.name, ())
        meets: list[int] = []
        while self._waiting:
            function = self._waiting.pop(0)
            if function.name not in self._starts:
                meets += self._encode(function)
        for row, name in self._calls:
            self._rows[row][n.X] = self._starts[name]
        known = {name: number for number, name in enumerate(n.SPECIALS)}
        specials = [(slot, known[str(key)]) for key, slot in self._slots.items() if str(key) in known]
        names = {variable.name: number for number, variable in enumerate(self._entry.parameters)}
        parameters = [
            ParameterSlot(names[name], offset, size, slot) for (name, offset, size), slot in self._parameters.items()
        ]
        return Code(
            self._entry.name, np.array(self._rows, np.int64), np.array(meets, np.int64), tuple(self._origins),
            len(self._slots), tuple((slot, bits) for bits, slot in self._constants.items()), tuple(specials),
            tuple(parameters), tuple(max(1, one.count) * BYTES[one.kind] for one in self._entry.parameters),
            self._shared, self._local, self._granule, self._entry.threads,
        )  # fmt: skip

    def _place(self, variable: PtxVariable, function: str) -> None:
        """Shared and local variables, one behind the other; one of unknown length, which a launch adds, is the last."""
        size = variable.count * BYTES[variable.kind]
        if variable.space == "shared":
            at = -(-self._shared // variable.alignment) * variable.alignment
            self._addresses[function + variable.name] = at
            self._shared = at + size
        elif variable.space == "local":
            at = -(-self._local // variable.alignment) * variable.alignment
            self._addresses[function + variable.name] = at
            self._local = at + size

    def _refuse_recursion(self, name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise NotPtx(f"{name} calls itself, by {' > '.join((*above, name))}; the machine knows no recursion.")
        for item in self._called(name).body:
            if isinstance(item, PtxInstruction) and item.name == "call":
                self._refuse_recursion(_callee(item), (*above, name))

    def _called(self, name: str) -> PtxFunction:
        function = self._module.functions.get(name)
        if function is None:
            raise NotPtx(f"{name!r} is called and has no body in this module.")
        return function

    # One function.

    def _encode(self, function: PtxFunction) -> list[int]:
        self.function = function
        self._starts[function.name] = begin = len(self._rows)
        for variable in function.variables:
            self._place(variable, function.name + "/")
        labels: dict[str, int] = {}
        tables = {item.name: item.labels for item in function.body if isinstance(item, PtxTable)}
        jumps: list[tuple[int, list[str | None]]] = []  # rows that branch, and to which labels; None: to the end
        for item in function.body:
            if isinstance(item, PtxLabel):
                labels[item.name] = len(self._rows)
            elif isinstance(item, PtxInstruction):
                self.instruction = item
                if item.name == "bra":
                    jumps.append((self.row(n.BRA), [_target(item)]))
                elif item.name == "brx":
                    index, table = item.operands[0], item.operands[1]
                    names = tables[table.name if isinstance(table, Symbol) else ""]
                    self.row(n.BRX, A=self.source(index, 32), X=len(names))
                    jumps += [(self.row(n.BRA), [name]) for name in names]  # it goes on at one of these rows
                elif item.name in ("ret", "exit") and (function.entry or item.name == "ret"):
                    jumps.append((self.row(n.BRA), [None]))
                elif item.name == "exit":
                    raise self.refuse("ends a thread within a function")
                elif item.name == "call":
                    self._call(item, function)
                else:
                    self._write(item)
        self.instruction = None
        last = self.row(n.EXIT) if function.entry else self.row(n.RET, A=self.slot((function.name, "return")))
        return self._connect(begin, last, labels, jumps)

    def _write(self, item: PtxInstruction) -> None:
        family = self._families.get(item.name)
        if family is None:
            raise self.refuse("is an instruction that the machine does not know")
        before = len(self._rows)
        family(self, item)
        for row in self._rows[before:]:
            if row[n.OP] in (n.LD, n.ST, n.ATOM):
                self._granule = min(self._granule, row[n.BITS] // 8)

    def _connect(
        self, begin: int, last: int, labels: Mapping[str, int], jumps: list[tuple[int, list[str | None]]]
    ) -> list[int]:
        targets: dict[int, list[int]] = {}
        for row, names in jumps:
            for name in names:
                if name is not None and name not in labels:
                    raise NotPtx(f"{self.function.name} branches to {name!r}, which it does not have.")
            targets[row] = [last if name is None else labels[name] for name in names]
        following: list[list[int]] = []
        for row in range(begin, last + 1):
            guarded = self._rows[row][n.GUARD] >= 0
            if row in targets:
                more = [row + 1] if guarded else []
                following.append(sorted({*targets[row], *more}))
                self._rows[row][n.X] = targets[row][0]
            elif self._rows[row][n.OP] == n.BRX:
                following.append(list(range(row + 1, row + 1 + self._rows[row][n.X] + guarded)))
            elif row == last or (self._rows[row][n.OP] == n.TRAP and not guarded):
                following.append([])
            else:
                following.append([row + 1])
        met = meeting([[one - begin for one in some] for some in following])
        return [one + begin if one >= 0 else -1 for one in met]

    def _call(self, item: PtxInstruction, function: PtxFunction) -> None:
        name = _callee(item)
        callee = self._called(name)
        groups = [one for one in item.operands if isinstance(one, PtxGroup)]
        given = groups.pop() if callee.parameters else PtxGroup(())
        results = groups.pop() if callee.results else PtxGroup(())
        before, after = _around(function, item)
        mine, theirs = _parts(before, "st"), _parts(callee.body, "ld")
        for formal, actual in zip(callee.parameters, given.members, strict=True):
            for part in theirs.get(formal.name, ()):
                target = self.slot((name, formal.name, *part))
                if isinstance(actual, Symbol):
                    self._moved(target, part, (function.name, actual.name), mine.get(actual.name, ()))
                else:
                    self.row(n.MOV, D=target, A=self.source(actual, 8 * part[1]), D_BITS=8 * part[1])
        self._calls.append((self.row(n.CALL, D=self.slot((name, "return"))), name))
        self._waiting.append(callee)
        mine, theirs = _parts(after, "ld"), _parts(callee.body, "st")
        for formal, actual in zip(callee.results, results.members, strict=True):
            written = theirs.get(formal.name, ())
            if isinstance(actual, Symbol):
                for part in mine.get(actual.name, ()):
                    self._moved(self.slot((function.name, actual.name, *part)), part, (name, formal.name), written)
            else:
                for part in written:
                    self.row(
                        n.MOV, D=self.source(actual, 8 * part[1]), A=self.slot((name, formal.name, *part)),
                        D_BITS=8 * part[1],
                    )  # fmt: skip

    def _moved(self, target: int, part: _LoadPart, holder: tuple[str, str], written: Sequence[_LoadPart]) -> None:
        """A part of a parameter from where it was written, perhaps as a part of a longer one."""
        offset, size = part
        for begin, length in sorted(written, key=lambda one: one != part):
            if begin <= offset and offset + size <= begin + length:
                source = self.slot((*holder, begin, length))
                if begin == offset:
                    self.row(n.MOV, D=target, A=source, D_BITS=8 * size)
                else:
                    by = self.constant(8 * (offset - begin))
                    self.row(n.SHR, D=target, A=source, B=by, BITS=64, D_BITS=8 * size)
                return
        raise self.refuse(f"passes bytes {offset} to {offset + size} of {holder[1]!r}, which are not written as one")

    # What families write with.

    def refuse(self, fault: str) -> NotPtx:
        """The error that names the line at hand."""
        item = self.instruction
        assert item is not None
        return NotPtx(f"line {item.line}: {item.text} -- {fault}.")

    def row(self, op: int, **columns: int) -> int:
        """Write a row and return its number; vectors' members are `slots`."""
        row = [0] * n.COLUMNS
        row[n.OP], row[n.GUARD] = op, -1
        item = self.instruction
        if item is not None:
            row[n.LINE] = item.line
            if item.guard is not None:
                row[n.GUARD] = self.slot((self.function.name, item.guard)) * n.LANES
                row[n.NEGATED] = int(item.negated)
        for name, value in columns.items():
            column = getattr(n, name)
            row[column] = value * n.LANES if name in ("A", "B", "C", "D", "E") else value
        self._rows.append(row)
        self._origins.append((self.function, item))
        return len(self._rows) - 1

    def members(self, row: int, slots: list[int], begin: int = 0) -> None:
        """Slots of a vector, from a place on; -1 stands for a member that is thrown away."""
        for place, slot in enumerate(slots, n.SLOTS + begin):
            self._rows[row][place] = slot * n.LANES if slot >= 0 else -1

    def put(self, row: int, *values: int) -> None:
        """Numbers where a vector's members would stand."""
        self._rows[row][n.SLOTS : n.SLOTS + len(values)] = values

    def slot(self, key: object) -> int:
        """The slot of a register, by a key of its own."""
        return self._slots.setdefault(key, len(self._slots))

    def constant(self, bits: int) -> int:
        """The slot of a number, its bits in 64."""
        bits &= (1 << 64) - 1
        if bits not in self._constants:
            self._constants[bits] = self.slot(("constant", bits))
        return self._constants[bits]

    def width(self, operand: PtxOperand) -> int:
        """Bits of a register."""
        if isinstance(operand, Register):
            kind = self.function.registers.get(operand.name)
            if kind is not None:
                return 1 if kind == "pred" else 8 * BYTES[kind]
        raise self.refuse("has an operand that is no register")

    def target(self, operand: PtxOperand) -> int:
        """The slot of a register that is written; -1 for `_`."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return -1
        operand = self._register(operand)
        self.width(operand)
        assert isinstance(operand, Register)
        return self.slot((self.function.name, operand.name))

    def source(self, operand: PtxOperand, bits: int) -> int:
        """The slot of what is read: a register, a special one, a number, the address of a variable."""
        operand = self._register(operand)
        if isinstance(operand, Immediate):
            return self.constant(operand.bits & ((1 << bits) - 1))
        if isinstance(operand, Symbol):
            return self.constant(self.address_of(operand.name))
        if not isinstance(operand, Register):
            raise self.refuse("has an operand of a form that the machine does not know")
        if operand.name in n.SPECIALS:
            return self.slot(operand.name)
        if operand.name == "WARP_SZ":
            return self.constant(32)
        if operand.name not in self.function.registers:
            raise self.refuse(f"reads {operand.name}, which the machine does not know")
        return self.slot((self.function.name, operand.name))

    def _register(self, operand: PtxOperand) -> PtxOperand:
        """A register whose name has no percent sign, as LLVM declares them for older processors."""
        known = isinstance(operand, Symbol) and operand.name in self.function.registers
        return Register(operand.name) if known and isinstance(operand, Symbol) else operand

    def address_of(self, name: str) -> int:
        """Where a variable lies, in its space."""
        for known in (f"{self.function.name}/{name}", name):
            if known in self._addresses:
                return self._addresses[known]
        raise self.refuse(f"names {name!r}, which has no place")

    def parameter(self, address: Address, size: int, extra: int = 0) -> int:
        """The slot of a part of a parameter, of this function or of one that it calls."""
        if not isinstance(address.base, Symbol):
            raise self.refuse("reads a parameter at a place that is computed")
        key = (address.base.name, address.offset + extra, size)
        if self.function.entry and any(one.name == address.base.name for one in self.function.parameters):
            return self._parameters.setdefault(key, self.slot((self.function.name, *key)))
        return self.slot((self.function.name, *key))


def _callee(item: PtxInstruction) -> str:
    names = [one.name for one in item.operands if isinstance(one, Symbol)]
    if not names:
        raise NotPtx(f"line {item.line}: {item.text} -- calls through a pointer, which the machine does not know.")
    return names[0]


def _target(item: PtxInstruction) -> str:
    (operand,) = item.operands
    if not isinstance(operand, Symbol):
        raise NotPtx(f"line {item.line}: {item.text} -- branches to what is no label.")
    return operand.name


def _around(function: PtxFunction, call: PtxInstruction) -> tuple[list[PtxInstruction], list[PtxInstruction]]:
    """The instructions between a call and the one before it, and the one behind it."""
    items = [one for one in function.body if isinstance(one, PtxInstruction)]
    at = next(place for place, one in enumerate(items) if one is call)
    calls = [-1, *(place for place, one in enumerate(items) if one.name == "call"), len(items)]
    return items[max(one for one in calls if one < at) + 1 : at], items[at + 1 : min(one for one in calls if one > at)]


def _parts(items: Iterable[object], name: str) -> dict[str, list[_LoadPart]]:
    """Of each parameter and result the offsets and bytes that instructions read (ld) or write (st)."""
    found: dict[str, set[_LoadPart]] = {}
    for item in items:
        if isinstance(item, PtxInstruction) and item.name == name and "param" in item.modifiers:
            address, value = item.operands if name == "st" else reversed(item.operands)
            size = BYTES[item.modifiers[-1]]
            many = len(value.members) if isinstance(value, PtxGroup) else 1
            if isinstance(address, Address) and isinstance(address.base, Symbol):
                parts = found.setdefault(address.base.name, set())
                parts.update((address.offset + size * one, size) for one in range(many))
    return {name: sorted(parts) for name, parts in found.items()}

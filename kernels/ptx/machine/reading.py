"""From PTX text to records: a lexer and a parser for what LLVM's back end writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

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
    StateSpace,
    Symbol,
)

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|//[^\n]*|/\*.*?\*/)
      | (?P<line>\n)
      | (?P<string>"[^"\n]*")
      | (?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+U?)
      | (?P<name>[%$_A-Za-z][\w$%]*(?:(?:\.|::)[\w$]+)*)
      | (?P<directive>\.\w+)
      | (?P<mark>[@!;:,{}()\[\]<>=+|-])""",
    re.VERBOSE | re.DOTALL,
)
_SPACES = {".global": "global", ".const": "const", ".shared": "shared", ".local": "local", ".param": "param"}
_LINKING = {".visible", ".extern", ".weak", ".common"}
BYTES = {
    "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4,
    "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16, "pred": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """A word of the text: its kind and where it stands."""

    kind: str
    text: str
    line: int


@lru_cache(maxsize=4)  # a module is launched on one machine after the other, and reading it takes longer than a launch
def read(text: str) -> PtxModule:
    """The module that a text describes; raises NotPtx with the line of what it cannot read."""
    return _Parser(text).module()


def tokens(text: str) -> list[Token]:
    """The words of a text without comments."""
    found: list[Token] = []
    at, line = 0, 1
    for match in _TOKEN.finditer(text):
        if match.start() != at:
            break
        at = match.end()
        kind = str(match.lastgroup)
        if kind in ("skip", "line"):
            line += match[0].count("\n")
        else:
            found.append(Token(kind, match[0], line))
    if at != len(text):
        raise NotPtx(f"line {line}: {text[at]!r} begins no word of PTX.")
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._lines = tuple(text.split("\n"))
        self._tokens = tokens(text)
        self._at = 0
        self._files: dict[int, str] = {}
        self._sources: dict[int, tuple[str, int]] = {}
        self._source: tuple[str, int] | None = None

    # Words.

    def _next(self) -> Token:
        if self._at == len(self._tokens):
            raise NotPtx(f"line {len(self._lines)}: the text ends within a statement.")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _take(self, text: str) -> bool:
        if self._peek() != text:
            return False
        self._at += 1
        return True

    def _expect(self, text: str) -> Token:
        token = self._next()
        if token.text != text:
            raise NotPtx(f"line {token.line}: {text!r} was expected, not {token.text!r}.")
        return token

    def _integer(self) -> int:
        negative = self._take("-")
        token = self._next()
        if token.kind != "number":
            raise NotPtx(f"line {token.line}: a number was expected, not {token.text!r}.")
        value = int(token.text.rstrip("U"), 0)
        return -value if negative else value

    # The file.

    def module(self) -> PtxModule:
        functions: dict[str, PtxFunction] = {}
        variables: list[PtxVariable] = []
        while self._at < len(self._tokens):
            token = self._next()
            if token.text in (".version", ".target", ".address_size"):
                self._to_next_line(token.line)
            elif token.text == ".file":
                self._file()
            elif token.text == ".section":
                self._section()
            elif token.text in _LINKING:
                continue
            elif token.text in (".entry", ".func"):
                function = self._function(token)
                if function is not None:
                    functions[function.name] = function
            elif token.text in _SPACES:
                variables.append(self._variable(token))
                self._expect(";")
            elif token.text != ";":
                raise NotPtx(f"line {token.line}: {token.text!r} begins no statement that the machine knows.")
        return PtxModule(functions, tuple(variables), self._lines, self._sources)

    def _to_next_line(self, line: int) -> None:
        while self._at < len(self._tokens) and self._tokens[self._at].line == line:
            self._at += 1

    def _file(self) -> None:
        line = self._tokens[self._at - 1].line
        number = self._integer()
        self._files[number] = self._next().text.strip('"')
        self._to_next_line(line)

    def _section(self) -> None:
        while self._next().text != "{":
            pass
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self._next().text, 0)

    def _variable(self, space: Token) -> PtxVariable:
        alignment, kind, name = 1, "", ""
        while True:
            token = self._next()
            if token.text == ".align":
                alignment = self._integer()
            elif token.text == ".ptr":
                while self._peek() in (*_SPACES, ".align"):
                    if self._next().text == ".align":
                        self._integer()
            elif token.kind == "directive":
                kind = token.text[1:]
            else:
                name = token.text
                break
        if kind not in BYTES:
            raise NotPtx(
                f"line {token.line}: variable {name!r} has the type {kind!r}, which the machine does not know."
            )
        count = 1
        while self._take("["):
            if not self._take("]"):
                count *= self._integer()
                self._expect("]")
            else:
                count = 0
        values: tuple[int, ...] | None = None
        if self._take("="):
            values = self._values(token.line)
        where = cast(StateSpace, _SPACES[space.text])
        return PtxVariable(name, where, kind, count, max(alignment, BYTES[kind]), values, token.line)

    def _values(self, line: int) -> tuple[int, ...]:
        found: list[int] = []
        depth = 0
        while True:
            if self._take("{"):
                depth += 1
                continue
            if self._take("}"):
                depth -= 1
            else:
                operand = self._operand()
                if not isinstance(operand, Immediate):
                    raise NotPtx(f"line {line}: a variable begins with an address, which the machine does not know.")
                found.append(operand.bits)
            if not depth:
                return tuple(found)
            self._take(",")

    # Functions.

    def _function(self, kind: Token) -> PtxFunction | None:
        results: tuple[PtxVariable, ...] = ()
        if self._peek() == "(":
            results = self._parameters()
        name = self._next().text
        parameters = self._parameters() if self._peek() == "(" else ()
        threads: int | None = None
        while self._peek() not in ("{", ";"):
            token = self._next()
            if token.text == ".reqntid":
                threads = self._integer()
                while self._take(","):
                    threads *= self._integer()
        if self._take(";"):
            return None
        self._expect("{")
        registers: dict[str, str] = {}
        variables: list[PtxVariable] = []
        body: list[PtxInstruction | PtxLabel | PtxTable] = []
        depth = 1
        self._source = None
        while depth:
            token = self._next()
            if token.text in "{}":
                depth += 1 if token.text == "{" else -1
            elif token.text == ".reg":
                self._registers(registers)
            elif token.text in _SPACES:
                variables.append(self._variable(token))
                self._expect(";")
            elif token.text == ".pragma":
                while self._next().text != ";":
                    pass
            elif token.text == ".loc":
                self._location(token.line)
            elif token.kind == "name" and self._peek() == ":":
                self._expect(":")
                body.append(self._labelled(token))
            elif token.text != ";":
                body.append(self._instruction(token))
        return PtxFunction(
            name, kind.text == ".entry", parameters, results, registers, tuple(variables), tuple(body), threads,
            kind.line,
        )  # fmt: skip

    def _parameters(self) -> tuple[PtxVariable, ...]:
        found: list[PtxVariable] = []
        self._expect("(")
        while not self._take(")"):
            token = self._next()
            if token.text in (".param", ".reg"):
                found.append(self._variable(Token("directive", ".param", token.line)))
            elif token.text != ",":
                raise NotPtx(f"line {token.line}: {token.text!r} is no parameter.")
        return tuple(found)

    def _registers(self, registers: dict[str, str]) -> None:
        kind = self._next().text[1:]
        while True:
            token = self._next()
            if self._take("<"):
                for number in range(self._integer()):
                    registers[f"{token.text}{number}"] = kind
                self._expect(">")
            else:
                registers[token.text] = kind
            if self._take(";"):
                return
            self._expect(",")

    def _location(self, line: int) -> None:
        number, place = self._integer(), self._integer()
        self._source = (self._files.get(number, f"file {number}"), place)
        self._to_next_line(line)

    def _labelled(self, token: Token) -> PtxLabel | PtxTable:
        if not self._take(".branchtargets"):
            return PtxLabel(token.text, token.line)
        labels: list[str] = []
        while not self._take(";"):
            labels.append(self._next().text)
            self._take(",")
        return PtxTable(token.text, tuple(labels))

    def _instruction(self, token: Token) -> PtxInstruction:
        line, guard, negated = token.line, None, False
        begin = token.line
        if token.text == "@":
            negated = self._take("!")
            guard = self._next().text
            token = self._next()
        if token.kind != "name":
            raise NotPtx(f"line {line}: {token.text!r} begins no instruction.")
        name, *modifiers = token.text.split(".")
        operands: list[PtxOperand] = []
        while not self._take(";"):
            operands.append(self._operand())
            self._take(",")
        if self._source is not None:
            self._sources[line] = self._source
        text = " ".join(one.strip() for one in self._lines[begin - 1 : self._tokens[self._at - 1].line])
        return PtxInstruction(line, name, tuple(modifiers), tuple(operands), guard, negated, " ".join(text.split()))

    def _operand(self) -> PtxOperand:
        token = self._next()
        if token.text in ("{", "("):
            members: list[PtxOperand] = []
            closing = "}" if token.text == "{" else ")"
            while not self._take(closing):
                members.append(self._operand())
                self._take(",")
            return PtxGroup(tuple(members))
        if token.text == "[":
            return self._address()
        if token.text == "-":
            inner = self._operand()
            if not isinstance(inner, Immediate) or inner.real:
                raise NotPtx(f"line {token.line}: a sign stands before what is no integer.")
            return Immediate(-inner.bits)
        if token.text == "!":
            raise NotPtx(f"line {token.line}: the machine knows no negated operands.")
        if token.kind == "number":
            return _number(token.text)
        if token.kind != "name":
            raise NotPtx(f"line {token.line}: {token.text!r} is no operand.")
        first: PtxOperand = Register(token.text) if token.text.startswith("%") else Symbol(token.text)
        if self._take("|"):
            return PtxGroup((first, self._operand()))
        return first

    def _address(self) -> Address:
        base = self._operand()
        if not isinstance(base, Register | Symbol | Immediate):
            raise NotPtx(f"line {self._tokens[self._at - 1].line}: the machine knows no such address.")
        offset = 0
        if self._take("+") or self._peek() == "-":
            offset = self._integer()
        self._expect("]")
        return Address(base, offset)


def _number(text: str) -> Immediate:
    prefix = text[:2].lower()
    if prefix == "0f":
        return Immediate(int(text[2:], 16), "f32")
    if prefix == "0d":
        return Immediate(int(text[2:], 16), "f64")
    return Immediate(int(text.rstrip("U"), 0))

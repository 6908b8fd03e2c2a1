"""How instructions that compute are encoded: whole numbers, real numbers, comparisons, conversions."""

from __future__ import annotations

from kernels.ptx.machine import numbers as n
from kernels.ptx.machine.encoding import Encoder, Family
from kernels.ptx.machine.grammar import Immediate, PtxGroup, PtxInstruction, PtxOperand, Register
from kernels.ptx.machine.reading import BYTES

_REALS = {"f32": n.F32, "f64": n.F64, "f16": n.F16, "bf16": n.BF16, "f16x2": n.F16X2, "bf16x2": n.BF16X2}
_WHOLE = {
    "add": n.ADD, "sub": n.SUB, "div": n.DIV, "rem": n.REM, "min": n.MIN, "max": n.MAX, "abs": n.ABS, "neg": n.NEG,
    "and": n.AND, "or": n.OR, "xor": n.XOR, "not": n.NOT, "shl": n.SHL, "shr": n.SHR, "brev": n.BREV, "clz": n.CLZ,
    "popc": n.POPC, "sad": n.SAD,
}  # fmt: skip
_REAL = {
    "add": n.F_ADD, "sub": n.F_SUB, "mul": n.F_MUL, "fma": n.F_FMA, "mad": n.F_FMA, "div": n.F_DIV, "rcp": n.F_RCP,
    "sqrt": n.F_SQRT, "rsqrt": n.F_RSQRT, "sin": n.F_SIN, "cos": n.F_COS, "ex2": n.F_EX2, "lg2": n.F_LG2,
    "tanh": n.F_TANH, "min": n.F_MIN, "max": n.F_MAX, "abs": n.F_ABS, "neg": n.F_NEG, "copysign": n.F_COPYSIGN,
}  # fmt: skip
_COMPARISONS = {
    "eq": n.EQ, "ne": n.NE, "lt": n.LT, "le": n.LE, "gt": n.GT, "ge": n.GE, "num": n.NUM, "nan": n.NAN,
    "lo": n.LT, "ls": n.LE, "hi": n.GT, "hs": n.GE,
}  # fmt: skip
_UNORDERED = {f"{name}u": n.UNORDERED + _COMPARISONS[name] for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_TESTS = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
_COMBINED = {"and": 1, "or": 2, "xor": 3}
_ROUNDINGS = {"rn": n.NEAREST, "rz": n.ZERO, "rm": n.DOWN, "rp": n.UP, "rna": n.AWAY}
_INTEGRAL = {"rni": n.NEAREST, "rzi": n.ZERO, "rmi": n.DOWN, "rpi": n.UP}
FTZ, SATURATED, RELU = 1, 2, 4  # in column Z of real numbers and conversions


def families() -> dict[str, Family]:
    """By an instruction's name what encodes it."""
    found: dict[str, Family] = dict.fromkeys((*_WHOLE, *_REAL, "mul", "mad", "fma"), _arithmetic)
    found |= {
        "mov": _move, "cvta": _generic, "isspacep": _in_space, "setp": _compare, "selp": _select, "cvt": _convert,
        "testp": _test, "shf": _funnel, "bfe": _field, "bfi": _insert, "prmt": _permute, "lop3": _logic,
    }  # fmt: skip
    return found


def _arithmetic(e: Encoder, item: PtxInstruction) -> None:
    kind = item.modifiers[-1]
    if kind in _REALS:
        _real(e, item, kind)
        return
    bits = 1 if kind == "pred" else 8 * BYTES[kind]
    op, wide = _WHOLE.get(item.name, -1), False
    if item.name in ("mul", "mad"):
        form = item.modifiers[0]
        names = {"lo": (n.MUL, n.MAD), "hi": (n.MUL_HI, n.MAD_HI), "wide": (n.MUL_WIDE, n.MAD_WIDE)}
        if form not in names:
            raise e.refuse(f"multiplies as {form!r}, which the machine does not know")
        op, wide = names[form][item.name == "mad"], form == "wide"
    if op < 0 or set(item.modifiers[:-1]) - {"lo", "hi", "wide"}:
        raise e.refuse("is a form that the machine does not know")
    slots = [e.source(one, bits) for one in item.operands[1:]]
    if op in (n.SHL, n.SHR):
        slots[1] = e.source(item.operands[2], 32)
    if op == n.MAD_WIDE:
        slots[2] = e.source(item.operands[3], 2 * bits)
    out = 32 if op in (n.CLZ, n.POPC) else 2 * bits if wide else bits
    _row(e, op, item.operands[0], slots, BITS=bits, SIGNED=int(kind[0] == "s"), D_BITS=out)


def _row(e: Encoder, op: int, target: PtxOperand, slots: list[int], **more: int) -> None:
    names = ("A", "B", "C")
    e.row(op, D=e.target(target), **dict(zip(names, slots, strict=False)), **more)


def _flags(e: Encoder, item: PtxInstruction, known: set[str]) -> int:
    for one in item.modifiers:
        if one not in known:
            raise e.refuse(f"has .{one}, which the machine does not know here")
    has = item.modifiers
    return FTZ * ("ftz" in has) + SATURATED * ("sat" in has) + RELU * ("relu" in has)


def _real(e: Encoder, item: PtxInstruction, kind: str) -> None:
    op = _REAL.get(item.name, -1)
    known = {kind, "ftz", "sat", "relu", "rn", "approx", "full", "NaN"}
    z = _flags(e, item, known)
    if item.name in ("min", "max") and "NaN" in item.modifiers:
        op = n.F_MIN_NAN if item.name == "min" else n.F_MAX_NAN
    if op < 0:
        raise e.refuse("is a form that the machine does not know")
    bits = 8 * BYTES[kind]
    operands = item.operands[1:]
    if op == n.F_COPYSIGN:
        operands = (operands[1], operands[0])  # copysign.f32 d, a, b: the sign of a, the magnitude of b
    slots = [e.source(one, bits) for one in operands]
    _row(e, op, item.operands[0], slots, BITS=bits, D_BITS=bits, KIND=_REALS[kind], Z=z)


def _move(e: Encoder, item: PtxInstruction) -> None:
    target, source = item.operands
    bits = 1 if item.modifiers[-1] == "pred" else 8 * BYTES[item.modifiers[-1]]
    if isinstance(source, Register) and source.name in n.CLOCKS:
        e.row(n.CLOCK, D=e.target(target), D_BITS=bits)
    elif isinstance(source, PtxGroup):
        row = e.row(n.PACK, D=e.target(target), X=len(source.members), BITS=bits // len(source.members), D_BITS=bits)
        e.members(row, [e.source(one, bits // len(source.members)) for one in source.members])
    elif isinstance(target, PtxGroup):
        row = e.row(n.UNPACK, A=e.source(source, bits), X=len(target.members), BITS=bits // len(target.members))
        e.members(row, [e.target(one) for one in target.members])
    else:
        _row(e, n.MOV, target, [e.source(source, bits)], D_BITS=bits)


_BASES = {"shared": n.SHARED_BASE, "local": n.LOCAL_BASE, "global": 0, "const": 0, "param": 0}


def _generic(e: Encoder, item: PtxInstruction) -> None:
    """Cvta: to and from addresses that name their space by themselves."""
    to = item.modifiers[0] == "to"
    space = item.modifiers[1 if to else 0].split("::")[0]
    if space not in _BASES:
        raise e.refuse(f"names the space {space!r}, which the machine does not know")
    bits = 8 * BYTES[item.modifiers[-1]]
    base = e.constant(_BASES[space])
    _row(e, n.SUB if to else n.ADD, item.operands[0], [e.source(item.operands[1], bits), base], BITS=bits, D_BITS=bits)


def _in_space(e: Encoder, item: PtxInstruction) -> None:
    number = {"global": n.GLOBAL, "shared": n.SHARED, "local": n.LOCAL}.get(item.modifiers[0].split("::")[0])
    if number is None:
        raise e.refuse("asks for a space that the machine does not know")
    _row(e, n.SPACEP, item.operands[0], [e.source(item.operands[1], 64)], X=number, D_BITS=1)


def _compare(e: Encoder, item: PtxInstruction) -> None:
    kind = item.modifiers[-1]
    comparison = (_COMPARISONS | _UNORDERED).get(item.modifiers[0])
    combined = next((_COMBINED[one] for one in item.modifiers[1:-1] if one in _COMBINED), 0)
    if comparison is None or set(item.modifiers[1:-1]) - {*_COMBINED, "ftz"}:
        raise e.refuse("compares in a way that the machine does not know")
    target = item.operands[0]
    first, second = target.members if isinstance(target, PtxGroup) else (target, None)
    bits = 8 * BYTES[kind]
    columns = {
        "D": e.target(first), "A": e.source(item.operands[1], bits), "B": e.source(item.operands[2], bits),
        "X": comparison, "Y": combined, "BITS": bits, "D_BITS": 1, "E": -1 if second is None else e.target(second),
    }  # fmt: skip
    if combined:
        columns["C"] = e.source(item.operands[3], 1)
    if kind in _REALS:
        if _REALS[kind] in (n.F16X2, n.BF16X2):
            raise e.refuse("compares pairs, which the machine does not know")
        e.row(n.F_SETP, KIND=_REALS[kind], Z=FTZ * ("ftz" in item.modifiers), **columns)
    else:
        if item.modifiers[0] in _UNORDERED or comparison in (n.NUM, n.NAN):
            raise e.refuse("compares whole numbers as real ones")
        e.row(n.SETP, SIGNED=int(kind[0] == "s"), **columns)


def _select(e: Encoder, item: PtxInstruction) -> None:
    bits = 8 * BYTES[item.modifiers[-1]]
    target, first, second, predicate = item.operands
    _row(e, n.SELP, target, [e.source(first, bits), e.source(second, bits), e.source(predicate, 1)], D_BITS=bits)


def _test(e: Encoder, item: PtxInstruction) -> None:
    kind = item.modifiers[-1]
    if item.modifiers[0] not in _TESTS or kind not in ("f32", "f64"):
        raise e.refuse("tests what the machine does not know")
    test = _TESTS.index(item.modifiers[0])
    source = e.source(item.operands[1], 8 * BYTES[kind])
    _row(e, n.F_TEST, item.operands[0], [source], X=test, KIND=_REALS[kind], BITS=8 * BYTES[kind], D_BITS=1)


def _funnel(e: Encoder, item: PtxInstruction) -> None:
    side, mode = item.modifiers[0], item.modifiers[1]
    slots = [e.source(one, 32) for one in item.operands[1:]]
    _row(e, n.FUNNEL_L if side == "l" else n.FUNNEL_R, item.operands[0], slots, X=int(mode == "clamp"), D_BITS=32)


def _field(e: Encoder, item: PtxInstruction) -> None:
    kind = item.modifiers[-1]
    bits = 8 * BYTES[kind]
    slots = [e.source(item.operands[1], bits), *(e.source(one, 32) for one in item.operands[2:])]
    _row(e, n.BFE, item.operands[0], slots, BITS=bits, SIGNED=int(kind[0] == "s"), D_BITS=bits)


def _insert(e: Encoder, item: PtxInstruction) -> None:
    bits = 8 * BYTES[item.modifiers[-1]]
    target, first, second, start, length = item.operands
    slots = [e.source(first, bits), e.source(second, bits), e.source(start, 32)]
    _row(e, n.BFI, target, slots, E=e.source(length, 32), BITS=bits, D_BITS=bits)


def _permute(e: Encoder, item: PtxInstruction) -> None:
    if len(item.modifiers) > 1:
        raise e.refuse("permutes in a mode that the machine does not know")
    _row(e, n.PRMT, item.operands[0], [e.source(one, 32) for one in item.operands[1:]], BITS=32, D_BITS=32)


def _logic(e: Encoder, item: PtxInstruction) -> None:
    table = item.operands[4]
    if not isinstance(table, Immediate):
        raise e.refuse("has a table that is no number")
    slots = [e.source(one, 32) for one in item.operands[1:4]]
    _row(e, n.LOP3, item.operands[0], slots, X=table.bits, BITS=32, D_BITS=32)


def _convert(e: Encoder, item: PtxInstruction) -> None:
    *modes, to, origin = item.modifiers
    if to in ("f16x2", "bf16x2") and origin == "f32":
        z = _flags(e, item, {"rn", "relu", "ftz", to, origin})
        high, low = (e.source(one, 32) for one in item.operands[1:])
        _row(e, n.CVT_PAIR, item.operands[0], [high, low], KIND=_REALS[to], Z=z, D_BITS=32)
        return
    known = {*_ROUNDINGS, *_INTEGRAL, "ftz", "sat", "relu", to, origin}
    reals = _REALS | {"tf32": n.TF32}
    z = _flags(e, item, known)
    rounding = next((_ROUNDINGS[one] for one in modes if one in _ROUNDINGS), n.NEAREST)
    integral = next((_INTEGRAL[one] for one in modes if one in _INTEGRAL), -1)
    for one in (to, origin):
        if one not in BYTES or one in ("f16x2", "bf16x2"):
            raise e.refuse(f"converts {one}, which the machine does not know")
    bits, out = 8 * BYTES[origin], 8 * BYTES[to]
    signs = int(origin[0] == "s") + 2 * int(to[0] == "s")
    row = e.row(
        n.CVT, D=e.target(item.operands[0]), A=e.source(item.operands[1], bits), KIND=reals.get(origin, -1),
        X=rounding, Y=integral, Z=z, BITS=bits, D_BITS=e.width(item.operands[0]), SIGNED=signs,
    )  # fmt: skip
    e.put(row, reals.get(to, -1), out)

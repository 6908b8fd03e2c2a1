"""How instructions are encoded that touch memory, other lanes or other threads."""

from __future__ import annotations

from typing import Any

from kernels.ptx.machine import numbers as n
from kernels.ptx.machine.encoding import Encoder, Family
from kernels.ptx.machine.grammar import Address, Immediate, PtxGroup, PtxInstruction, PtxOperand, Symbol
from kernels.ptx.machine.reading import BYTES

_SPACES = {"global": n.GLOBAL, "shared": n.SHARED, "local": n.LOCAL, "const": n.GLOBAL}
_ORDERS = {
    "weak": n.WEAK, "relaxed": n.RELAXED, "acquire": n.ACQUIRE, "release": n.RELEASE, "acq_rel": n.ACQ_REL,
    "sc": n.SEQ_CST, "volatile": n.RELAXED,
}  # fmt: skip
_SCOPES = {"cta": n.CTA, "gpu": n.GPU, "sys": n.GPU}
_HINTS = {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1", "L2", "evict_last", "evict_first", "no_allocate"}
_ATOMICS = {
    "add": n.A_ADD, "and": n.A_AND, "or": n.A_OR, "xor": n.A_XOR, "exch": n.A_EXCH, "min": n.A_MIN, "max": n.A_MAX,
    "inc": n.A_INC, "dec": n.A_DEC, "cas": n.A_CAS,
}  # fmt: skip
_SHUFFLES = {"up": n.S_UP, "down": n.S_DOWN, "bfly": n.S_BFLY, "idx": n.S_IDX}
_VOTES = {"all": n.ALL, "any": n.ANY, "uni": n.UNI, "ballot": n.BALLOT}


def families() -> dict[str, Family]:
    """By an instruction's name what encodes it."""
    return {
        "ld": _load, "ldu": _load, "st": _store, "atom": _atomic, "red": _atomic, "fence": _fence, "membar": _fence,
        "bar": _barrier, "barrier": _barrier, "cp": _copy, "ldmatrix": _matrix, "mma": _product,
        "shfl": _shuffle, "vote": _vote, "match": _match, "redux": _reduce, "activemask": _active,
        "nanosleep": _sleep, "trap": _trap, "prefetch": _nothing, "prefetchu": _nothing, "applypriority": _nothing,
    }  # fmt: skip


def _space(e: Encoder, item: PtxInstruction) -> Any:
    for one in item.modifiers:
        name, _, window = one.partition("::")
        if name in _SPACES:
            if window == "cluster":
                raise e.refuse("reaches other blocks of a cluster, which the machine does not have")
            return _SPACES[name]
    return n.GENERIC


def _order(e: Encoder, item: PtxInstruction, default: int = n.WEAK) -> tuple[int, int]:
    if "cluster" in item.modifiers:
        raise e.refuse("orders memory within a cluster, which the machine does not have")
    order = next((_ORDERS[one] for one in item.modifiers if one in _ORDERS), default)
    scope = next((_SCOPES[one] for one in item.modifiers if one in _SCOPES), n.GPU)
    return order, scope


def _place(e: Encoder, operand: PtxOperand) -> tuple[int, int]:
    """The slot of a base and the offset."""
    if not isinstance(operand, Address):
        raise e.refuse("has no address")
    return e.source(operand.base, 64), operand.offset


def _check(e: Encoder, item: PtxInstruction, more: set[str]) -> None:
    for one in item.modifiers:
        name = one.split("::")[0]
        if name not in {*_SPACES, *_ORDERS, *_SCOPES, *_HINTS, *more, "cluster", item.modifiers[-1]}:
            raise e.refuse(f"has .{one}, which the machine does not know here")


def _load(e: Encoder, item: PtxInstruction) -> None:
    kind = item.modifiers[-1]
    target, place = item.operands[:2]
    bits = 8 * BYTES[kind]
    members = target.members if isinstance(target, PtxGroup) else (target,)
    if "param" in item.modifiers:
        assert isinstance(place, Address)
        for number, one in enumerate(members):
            slot = e.parameter(place, bits // 8, number * bits // 8)
            signed = kind[0] == "s"
            e.row(n.ADD, D=e.target(one), A=slot, B=e.constant(0), BITS=bits, SIGNED=int(signed), D_BITS=e.width(one))
        return
    _check(e, item, {"nc", "v2", "v4", "v8"})
    order, scope = _order(e, item)
    base, offset = _place(e, place)
    widths = [e.width(one) for one in members if one != Symbol("_")]
    row = e.row(
        n.LD, A=base, X=offset, Y=_space(e, item), Z=len(members), BITS=bits, SIGNED=int(kind[0] == "s"),
        D_BITS=max(widths, default=bits), ORDER=order, SCOPE=scope, KIND=int("nc" in item.modifiers),
    )  # fmt: skip
    e.members(row, [e.target(one) for one in members])


def _store(e: Encoder, item: PtxInstruction) -> None:
    kind = item.modifiers[-1]
    place, source = item.operands[:2]
    bits = 8 * BYTES[kind]
    members = source.members if isinstance(source, PtxGroup) else (source,)
    if "param" in item.modifiers:
        assert isinstance(place, Address)
        for number, one in enumerate(members):
            slot = e.parameter(place, bits // 8, number * bits // 8)
            e.row(n.MOV, D=slot, A=e.source(one, bits), D_BITS=bits)
        return
    _check(e, item, {"v2", "v4", "v8"})
    order, scope = _order(e, item)
    base, offset = _place(e, place)
    row = e.row(n.ST, A=base, X=offset, Y=_space(e, item), Z=len(members), BITS=bits, ORDER=order, SCOPE=scope)
    e.members(row, [e.source(one, bits) for one in members])


def _atomic(e: Encoder, item: PtxInstruction) -> None:
    kind = item.modifiers[-1]
    op = next((_ATOMICS[one] for one in item.modifiers if one in _ATOMICS), None)
    if op is None or kind not in ("u32", "s32", "b32", "u64", "s64", "b64", "f32", "f64"):
        raise e.refuse("is an atomic that the machine does not know")
    _check(e, item, {*_ATOMICS, "noftz"})
    order, scope = _order(e, item, n.RELAXED)
    operands = list(item.operands)
    target = e.target(operands.pop(0)) if item.name == "atom" else -1
    base, offset = _place(e, operands[0])
    bits = 8 * BYTES[kind]
    real = {"f32": n.F32 + 1, "f64": n.F64 + 1}.get(kind, 0)
    row = e.row(
        n.ATOM, A=base, X=offset, Y=_space(e, item), Z=op, BITS=bits, SIGNED=int(kind[0] == "s"), ORDER=order,
        SCOPE=scope, KIND=real, D_BITS=bits,
    )  # fmt: skip
    second = e.source(operands[2], bits) if op == n.A_CAS else -1
    e.members(row, [target, e.source(operands[1], bits), second])


def _fence(e: Encoder, item: PtxInstruction) -> None:
    if item.name == "membar":
        scopes = {"cta": n.CTA, "gl": n.GPU, "sys": n.GPU}
        order, scope = n.SEQ_CST, scopes.get(item.modifiers[0], -1)
    else:
        order, scope = _order(e, item, n.ACQ_REL)
        if set(item.modifiers) - {*_ORDERS, *_SCOPES}:
            scope = -1
    if scope < 0:
        raise e.refuse("is a fence that the machine does not know")
    e.row(n.FENCE, X=order, Y=scope)


def _barrier(e: Encoder, item: PtxInstruction) -> None:
    if "cluster" in item.modifiers:
        raise e.refuse("is a barrier of a cluster, which the machine does not have")
    words = [one for one in item.modifiers if one not in ("cta", "aligned")]
    if words == ["warp", "sync"]:
        e.row(n.WARP_SYNC, A=e.source(item.operands[0], 32))
        return
    aligned = item.name == "bar" or "aligned" in item.modifiers
    operands = list(item.operands)
    if words[:1] == ["red"]:
        kind = {"popc": n.RED_POPC, "and": n.RED_AND, "or": n.RED_OR}.get(words[1], -1)
        target, bits = e.target(operands.pop(0)), 32 if words[1] == "popc" else 1
        predicate = e.source(operands.pop(), 1)
    else:
        kind = {"sync": n.SYNC, "arrive": n.ARRIVE}.get(words[0] if words else "", -1)
        target, bits, predicate = 0, 0, 0
    if kind < 0:
        raise e.refuse("is a barrier that the machine does not know")
    number = e.source(operands[0], 32)
    count = e.source(operands[1], 32) if len(operands) > 1 else e.constant(0)
    if kind == n.ARRIVE and len(operands) < 2:
        raise e.refuse("arrives at a barrier without saying how many threads it is for")
    e.row(n.BARRIER, A=number, B=count, C=predicate, D=target, KIND=kind, X=int(aligned), D_BITS=bits)


def _copy(e: Encoder, item: PtxInstruction) -> None:
    words = item.modifiers
    if words[:1] != ("async",) or "bulk" in words or "mbarrier" in words:
        raise e.refuse("is a copy that the machine does not know")
    if "commit_group" in words:
        e.row(n.CP_COMMIT)
    elif "wait_group" in words or "wait_all" in words:
        left = item.operands[0] if "wait_group" in words else Immediate(0)
        if not isinstance(left, Immediate):
            raise e.refuse("waits for a number of groups that is no constant")
        e.row(n.CP_WAIT, X=left.bits, Y=int("wait_all" in words))
    else:
        target, offset = _place(e, item.operands[0])
        source, more = _place(e, item.operands[1])
        size = item.operands[2]
        if not isinstance(size, Immediate) or size.bits not in (4, 8, 16):
            raise e.refuse("copies neither 4 nor 8 nor 16 bytes")
        given = e.source(item.operands[3], 32) if len(item.operands) > 3 else e.constant(size.bits)
        e.row(n.CP_ASYNC, A=target, X=offset, B=source, Y=more, Z=size.bits, C=given, BITS=32)


def _matrix(e: Encoder, item: PtxInstruction) -> None:
    words = [one.split("::")[0] for one in item.modifiers]
    if words[:3] != ["sync", "aligned", "m8n8"] or words[-1] != "b16":
        raise e.refuse("loads a tile of a form that the machine does not know")
    many = {"x1": 1, "x2": 2, "x4": 4}[words[3]]
    target = item.operands[0]
    members = target.members if isinstance(target, PtxGroup) else (target,)
    base, offset = _place(e, item.operands[1])
    shared = _space(e, item)
    row = e.row(n.LDMATRIX, A=base, X=offset, Y=shared, Z=many, BITS=32, KIND=int("trans" in words))
    e.members(row, [e.target(one) for one in members])


_PRODUCTS = {  # type of A and B, depth: members of A, of B, their type
    ("m16n8k8", "tf32"): (4, 2, n.TF32, 8), ("m16n8k4", "tf32"): (2, 1, n.TF32, 4),
    ("m16n8k8", "bf16"): (2, 1, n.BF16, 8), ("m16n8k16", "bf16"): (4, 2, n.BF16, 16),
    ("m16n8k8", "f16"): (2, 1, n.F16, 8), ("m16n8k16", "f16"): (4, 2, n.F16, 16),
}  # fmt: skip


def _product(e: Encoder, item: PtxInstruction) -> None:
    words = item.modifiers
    known = _PRODUCTS.get((words[2], words[6] if len(words) > 7 else ""))
    if known is None or words[:2] != ("sync", "aligned") or words[3:5] != ("row", "col"):
        raise e.refuse("is a product of a form that the machine does not know")
    if words[5] != "f32" or words[-1] != "f32" or words[6] != words[7]:
        raise e.refuse("sums in a type that the machine does not know")
    many_a, many_b, kind, depth = known
    slots: list[int] = []
    for operand, many, writes in zip(item.operands, (4, many_a, many_b, 4), (True, False, False, False), strict=True):
        members = operand.members if isinstance(operand, PtxGroup) else (operand,)
        if len(members) != many:
            raise e.refuse(f"has {len(members)} registers where {many} belong")
        slots += [e.target(one) if writes else e.source(one, 32) for one in members]
    row = e.row(n.MMA, KIND=kind, X=depth, Y=many_a, Z=many_b)
    e.members(row, slots)


def _shuffle(e: Encoder, item: PtxInstruction) -> None:
    if item.modifiers[0] != "sync":
        raise e.refuse("shuffles without naming lanes")
    target = item.operands[0]
    first, second = target.members if isinstance(target, PtxGroup) else (target, None)
    source, lane, bounds, lanes = item.operands[1:]
    e.row(
        n.SHFL, D=e.target(first), E=-1 if second is None else e.target(second), A=e.source(source, 32),
        B=e.source(lane, 32), C=e.source(bounds, 32), Z=e.source(lanes, 32) * n.LANES, X=_SHUFFLES[item.modifiers[1]],
    )  # fmt: skip


def _vote(e: Encoder, item: PtxInstruction) -> None:
    if item.modifiers[0] != "sync":
        raise e.refuse("votes without naming lanes")
    kind = _VOTES[item.modifiers[1]]
    target, source, lanes = item.operands
    e.row(
        n.VOTE, D=e.target(target), A=e.source(source, 1), Z=e.source(lanes, 32) * n.LANES, X=kind,
        D_BITS=32 if kind == n.BALLOT else 1,
    )  # fmt: skip


def _match(e: Encoder, item: PtxInstruction) -> None:
    if item.modifiers[:2] != ("any", "sync"):
        raise e.refuse("matches in a way that the machine does not know")
    target, source, lanes = item.operands
    bits = 8 * BYTES[item.modifiers[-1]]
    e.row(n.MATCH, D=e.target(target), A=e.source(source, bits), Z=e.source(lanes, 32) * n.LANES)


def _reduce(e: Encoder, item: PtxInstruction) -> None:
    op, kind = _ATOMICS.get(item.modifiers[1], -1), item.modifiers[-1]
    if item.modifiers[0] != "sync" or op in (-1, n.A_EXCH, n.A_CAS) or kind not in ("u32", "s32", "b32"):
        raise e.refuse("reduces in a way that the machine does not know")
    target, source, lanes = item.operands
    e.row(
        n.REDUX, D=e.target(target), A=e.source(source, 32), Z=e.source(lanes, 32) * n.LANES, X=op,
        SIGNED=int(kind[0] == "s"),
    )  # fmt: skip


def _active(e: Encoder, item: PtxInstruction) -> None:
    e.row(n.ACTIVE, D=e.target(item.operands[0]))


def _sleep(e: Encoder, item: PtxInstruction) -> None:
    e.row(n.NANOSLEEP)


def _trap(e: Encoder, item: PtxInstruction) -> None:
    e.row(n.TRAP)


def _nothing(e: Encoder, item: PtxInstruction) -> None:
    e.row(n.NOP)

"""Memory from the system, as LLVM: reserved first, and made usable piece by piece. Linux only."""

from __future__ import annotations

from kernels.emit.refusal import NO_MEMORY, refuse_when
from kernels.llvm.function import Amount, Function, Value

NONE, READ, WRITE = 0, 1, 2  # PROT_
PRIVATE, FIXED, ANONYMOUS, NO_RESERVE = 0x02, 0x10, 0x20, 0x4000  # MAP_
_HUGE, _POPULATE_WRITE = 14, 23  # MADV_


def reserve(f: Function, record: Value, size: Amount) -> Value:
    """The start of bytes that nobody may touch yet; refuses the model where there are none."""
    flags, wanted = PRIVATE | ANONYMOUS | NO_RESERVE, f.integer(size)
    base = f.value("ptr", f"call ptr @mmap(ptr null, i64 {wanted.text}, i32 {NONE}, i32 {flags}, i32 -1, i64 0)")
    refuse_memory(f, f.compare("eq", f.convert("ptrtoint", "i64", base), f.integer(-1)), record, wanted)
    return base


def allow(f: Function, record: Value, place: Value, size: Amount, *, large: bool) -> None:
    """Make a piece of a reservation usable, and bring its pages now: a run shall meet no fault."""
    wanted = f.integer(size)
    done = f.value("i32", f"call i32 @mprotect(ptr {place.text}, i64 {wanted.text}, i32 {READ | WRITE})")
    refuse_memory(f, f.compare("ne", done, f.number("i32", 0)), record, wanted)
    if large:
        f.value("i32", f"call i32 @madvise(ptr {place.text}, i64 {wanted.text}, i32 {_HUGE})")
    f.value("i32", f"call i32 @madvise(ptr {place.text}, i64 {wanted.text}, i32 {_POPULATE_WRITE})")  # Linux 5.14


def count(f: Function, record: Value, taken: Value, size: Amount, limit: Value) -> None:
    """Add to the bytes that a model has taken; refuses it before it takes more than its limit, where that is not 0."""
    total = f.add(f.load("i64", taken), f.integer(size))
    f.store(total, taken)
    beyond = f.binary("and", f.compare("ne", limit, f.integer(0)), f.compare("ugt", total, limit))
    sentence = "the model takes %lld bytes of memory or more; its options allow %lld."
    refuse_when(f, beyond, NO_MEMORY, record, sentence, total, limit)


def refuse_memory(f: Function, condition: Value, record: Value, size: Value) -> None:
    """Refuse the model where a condition says that so many bytes are not there."""
    sentence = "there are not %lld bytes of memory for the program: %m."
    if size.is_constant:
        sentence = f"there are not {int(size.text):,} bytes of memory for the program: %m."
        refuse_when(f, condition, NO_MEMORY, record, sentence)
    else:
        refuse_when(f, condition, NO_MEMORY, record, sentence, size)

"""The threads of a block: their numbers, loops over what they share, barriers, shuffles, and shared memory.

Numbers are of 32 bits: a GPU multiplies and divides those of 64 in many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernels.dtype import DType
from kernels.errors import KernelsError
from kernels.kernel import ENTRY, Kernel, Operand, pointers_of, write_kernel
from kernels.llvm import types
from kernels.llvm.conversion import memory_type, widened
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.target import Target

THREADS = 256  # of a block
WARP = 32  # threads that run in step
WARPS = THREADS // WARP
RESIDENT = 3  # blocks of a multiprocessor, by the 80 registers of their threads: what tasks need, but for wide tiles
MOST_ELEMENTS = (1 << 31) - 1  # of what is numbered with 32 bits


class NoTask(KernelsError):
    """A problem that no task computes; the message says why."""


class Block:
    """One block of threads that computes a piece of a region: `number` says which."""

    def __init__(self, f: Function, pointers: dict[str, Value], block: Value) -> None:
        self.f, self.pointers = f, pointers
        self.number = f.convert("trunc", "i32", block)
        self.shared = Value((f"addrspacecast (ptr addrspace(3) {shared_memory(f.module)} to ptr)",), "ptr")
        self.thread = special(f, "tid.x")

    # -- numbers ----------------------------------------------------------------------------------------------------

    def word(self, value: int) -> Value:
        """A constant."""
        return self.f.number("i32", value)

    def split(self, number: Value, sizes: Sequence[int]) -> tuple[Value, ...]:
        """The indices of an element with a number in row-major order."""
        f, found = self.f, list[Value]()
        for size in reversed(sizes[1:]):
            if size == 1:
                found.append(self.word(0))
                continue
            rest = f.binary("udiv", number, self.word(size))
            found.append(f.sub(number, f.mul(rest, size)))
            number = rest
        return (number, *reversed(found)) if sizes else ()

    def below(self, number: Value, limit: Value | int) -> Value:
        """Whether a number that is not negative is less than a limit."""
        return self.f.compare("ult", number, self.word(limit) if isinstance(limit, int) else limit)

    def least(self, number: Value, limit: int) -> Value:
        """The number, or the limit where that is less."""
        return self.f.minimum(number, self.word(limit), signed=False)

    def turns(self, each: int, body: Callable[[Value], None], wide: int = 1) -> None:
        """body(first) in turns, as often in all threads: a thread has `each` numbers, `wide` of them in a turn.

        Those of a turn are `first`, and then `THREADS` apart. Blocks have `span(each, wide)` numbers.
        """
        f, turns = self.f, -(-each // wide)
        start = f.add(f.mul(self.number, span(each, wide)), self.thread)
        if turns == 1:
            body(start)
            return

        def turn(number: Value, _: tuple[Value, ...]) -> Sequence[Value]:
            body(f.add(start, f.mul(number, THREADS * wide)))
            return ()

        f.loop(self.word(0), self.word(turns), 1, turn)

    # -- memory -----------------------------------------------------------------------------------------------------

    def at(self, base: Value, place: Value | int, kind: str = "float") -> Value:
        """The address so many elements of a type after `base`."""
        if isinstance(place, int):
            return self.f.at(base, place, kind)
        return self.f.at(base, self.f.convert("sext", "i64", place), kind)

    def load_vector(self, address: Value, count: int) -> list[Value]:
        """Floats that lie side by side, read at once: one, two or four."""
        if count == 1:
            return [self.f.load("float", address)]
        some = self.f.load(f"<{count} x float>", address, align=4 * count)
        return [self.f.extract(some, lane) for lane in range(count)]

    def store_vector(self, values: Sequence[Value], address: Value) -> None:
        """Floats side by side, written at once: one, two or four."""
        if len(values) == 1:
            self.f.store(values[0], address)
            return
        some = Value(("undef",), f"<{len(values)} x float>")
        for lane, one in enumerate(values):
            some = self.f.insert(some, one, lane)
        self.f.store(some, address, align=4 * len(values))

    def copy(self, to: Value, address: Value, inside: Value | None, dtype: DType, vector: int = 1) -> None:
        """Begin to copy floats from global to shared memory, as float32: zeros where they are not `inside`.

        They are there for the thread after `await_copies`, and for the others after a barrier behind it.
        """
        f = self.f
        if dtype is not DType.F32 or not self.copies_ahead:
            kind = memory_type(dtype)
            for lane in range(vector):
                value = self._float(f.at(address, lane, kind), inside, dtype)
                f.store(value, f.at(to, lane))
            return
        size = 4 * vector
        name = f"llvm.nvvm.cp.async.{'ca' if size == 4 else 'cg'}.shared.global.{size}.s"
        shared, world = "ptr addrspace(3)", "ptr addrspace(1)"
        f.module.declare(name, "void", [shared, world, "i32"])
        there = f.value(shared, f"addrspacecast ptr {to.text} to {shared}")
        source = f.value(world, f"addrspacecast ptr {address.text} to {world}")
        bytes_ = self.word(size) if inside is None else f.select(inside, self.word(size), self.word(0))
        f.line(f"call void @{name}({shared} {there.text}, {world} {source.text}, i32 {bytes_.text})")

    def _float(self, address: Value, inside: Value | None, dtype: DType) -> Value:
        f, kind = self.f, memory_type(dtype)
        if inside is None:
            return widened(f, f.load(kind, address), dtype)

        def read() -> Sequence[Value]:
            return (widened(f, f.load(kind, address), dtype),)

        return f.when(inside, read, lambda: (f.number("float", 0.0),))[0]

    @property
    def copies_ahead(self) -> bool:
        """Whether the GPU copies while threads go on: from compute capability 8.0 on."""
        return copies_ahead(self.f.module.target)

    def copies_end(self) -> None:
        """What was begun to be copied since the last call is a group."""
        if self.copies_ahead:
            self.f.module.declare("llvm.nvvm.cp.async.commit.group", "void", [])
            self.f.line("call void @llvm.nvvm.cp.async.commit.group()")

    def await_copies(self, groups: int) -> None:
        """Wait until all groups of the thread's copies but the last few are there."""
        if self.copies_ahead:
            self.f.module.declare("llvm.nvvm.cp.async.wait.group", "void", ["i32"])
            self.f.line(f"call void @llvm.nvvm.cp.async.wait.group(i32 {groups})")

    # -- together ---------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """All threads of the block meet; what they wrote before is seen by all of them behind it."""
        self.f.module.declare("llvm.nvvm.barrier.cta.sync.aligned.all", "void", ["i32"])
        self.f.line("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")

    def warp_barrier(self) -> None:
        """All threads of the warp meet; what they wrote before is seen by all of them behind it."""
        self.f.module.declare("llvm.nvvm.bar.warp.sync", "void", ["i32"])
        self.f.line("call void @llvm.nvvm.bar.warp.sync(i32 -1)")

    def strided(
        self, start: Value, stop: int, step: int, body: Callable[[Value, tuple[Value, ...]], Sequence[Value]],
        carried: Sequence[Value] = (),
    ) -> tuple[Value, ...]:  # fmt: skip
        """carried = body(i, carried) for i from a start of the thread's own, in steps; what is carried at the end."""
        return self.f.loop(start, self.word(stop), step, body, carried)

    def shuffled(self, value: Value, distance: int) -> Value:
        """The value of the thread of the warp whose number differs in one bit."""
        f = self.f
        bits = types.bits(value.type)
        if bits == 64:
            whole = f.convert("bitcast", "i64", value)
            halves = [f.convert("trunc", "i32", one) for one in (whole, f.binary("lshr", whole, f.number("i64", 32)))]
            low, high = (f.convert("zext", "i64", self._exchanged(one, distance)) for one in halves)
            whole = f.binary("or", low, f.binary("shl", high, f.number("i64", 32)))
            return f.convert("bitcast", value.type, whole)
        if value.type == "float":
            return f.convert("bitcast", "float", self._exchanged(f.convert("bitcast", "i32", value), distance))
        word = value if bits == 32 else f.convert("zext", "i32", value)
        found = self._exchanged(word, distance)
        return found if bits == 32 else f.convert("trunc", value.type, found)

    def _exchanged(self, word: Value, distance: int) -> Value:
        name = "llvm.nvvm.shfl.sync.bfly.i32"
        self.f.module.declare(name, "i32", ["i32", "i32", "i32", "i32"])
        return self.f.value("i32", f"call i32 @{name}(i32 -1, i32 {word.text}, i32 {distance}, i32 31)")

    def combined(
        self,
        values: tuple[Value, ...],
        group: int,
        combine: Callable[[tuple[Value, ...], tuple[Value, ...]], tuple[Value, ...]],
    ) -> tuple[Value, ...]:
        """Of each group of threads the values of all of them together, in every thread: groups of 1, 32, or the block.

        For whole blocks shared memory takes `shared_bytes(kinds)`; a barrier stands before it is written.
        """
        distance = min(group, WARP) // 2
        while distance:
            values = combine(values, tuple(self.shuffled(one, distance) for one in values))
            distance //= 2
        if group <= WARP:
            return values
        f = self.f
        warp = f.binary("lshr", self.thread, self.word(5))
        leads = f.compare("eq", f.binary("and", self.thread, self.word(WARP - 1)), self.word(0))
        bases = [f.at(self.shared, WARPS * 8 * number, "i8") for number in range(len(values))]
        self.barrier()

        def store() -> None:
            for one, base in zip(values, bases, strict=True):
                f.store(one, self.at(base, f.mul(warp, 8), "i8"))

        f.when(leads, store)
        self.barrier()
        found: tuple[Value, ...] | None = None
        for number in range(WARPS):
            some = tuple(
                f.load(one.type, f.at(base, 8 * number, "i8")) for one, base in zip(values, bases, strict=True)
            )
            found = some if found is None else combine(found, some)
        assert found is not None, "a block has warps"
        return found


def shared_bytes(values: int) -> int:
    """Shared memory that `combined` takes for so many values of a whole block."""
    return values * WARPS * 8


def each_of(elements: int, target: Target, most: int = 1 << 20) -> int:
    """How many elements a thread has, so that all blocks are resident at once, up to some."""
    return max(1, min(most, -(-elements // (THREADS * RESIDENT * max(1, target.workers)))))


def span(each: int, wide: int = 1) -> int:
    """Numbers that the threads of a block have together (`Block.turns`)."""
    return THREADS * wide * -(-each // wide)


def copies_ahead(target: Target) -> bool:
    """Whether the GPU copies to shared memory while threads go on: from compute capability 8.0 on."""
    return int(target.cpu.removeprefix("sm_")) >= 80


def special(f: Function, register: str) -> Value:
    """A special register of 32 bits, by PTX's name."""
    name = f"llvm.nvvm.read.ptx.sreg.{register}"
    f.module.declare(name, "i32", [])
    return f.value("i32", f"call i32 @{name}()")


def shared_memory(module: Module) -> str:
    """The name of the shared memory that a launch gives a block: all tasks use it, one after the other.

    It begins at a whole line, whatever lies before it: copies of 16 bytes whose target straddles two lines read the
    second cache twice. On an H200 tiles took up to 1.5 times as long behind 48 bytes.
    """
    return module.variable("block_memory", "external addrspace(3) global [0 x i8], align 128")


def write_task(
    target: Target, name: str, operands: Sequence[Operand], blocks: int, body: Callable[[Block], None], *,
    shared: int = 0, flops: int = 0, traffic: int | None = None, candidate: str = "",
    prepare: Callable[[Block], None] | None = None, resident: int = RESIDENT,
) -> Kernel:  # fmt: skip
    """A task; `body` writes what the threads of a block do, and `shared` is the block's shared memory in bytes.

    `prepare` writes what they do before the block waits for its inputs: it reads constants alone and leaves what it
    has in shared memory, where the body finds it behind its first barrier. Threads have as many registers as let so
    many blocks be `resident`. Raises NoTask where a block has less shared memory.
    """
    if shared > target.l1:
        raise NoTask(f"a block would take {shared:,} bytes of shared memory; {target.cpu} gives it {target.l1:,}.")
    if any(one.elements > MOST_ELEMENTS for one in operands):
        raise NoTask("an operand has more elements than 32 bits count.")

    def entry(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        body(Block(f, pointers, block))

    module = Module(target)
    kernel = write_kernel(
        module, name, operands, blocks, entry, scratch_bytes=shared, flops=flops, traffic=traffic, candidate=candidate
    )
    kernel = replace(kernel, resident=resident)
    if prepare is None:
        return kernel
    before = Function(module, f"{name}_prelude", ENTRY, exported=True)
    prepare(Block(before, pointers_of(before, operands), before.parameter("block")))
    before.finish()
    return replace(kernel, prelude=f"{name}_prelude")

"""Programs of tasks as one module: a persistent kernel whose blocks claim items, and a kernel for each task alone.

    ticketed(items, count, waits, pointers, counters, claimed, base, errors, epoch, stamps)
    pinned(lists, items, waits, pointers, counters, seats, errors, epoch, stamps)
    launch_NAME(pointers)                     the task NAME with a block of the grid for each of its own

An item is eight words: a run, a block of it, the number of its task, where the run's addresses begin among `pointers`,
the first of its waits, the one behind the last, and how many addresses there are. A wait is two words: a run, and how
many blocks it has, all of which must have ended. Each run has one counter; counters and claims only grow, and the
number of the launch, `epoch`, from 1 on, says where they were. How signals and waits are made is said in
`kernels.ptx.persistent`; here a signal is one addition that releases. What does not depend on what an item waits for is
done before the wait: addresses come to shared memory, and tasks prepare what they have to.

A pinned worker w has the items from lists[w] on, to those of the next one; all blocks have to be resident at once.
Workers w, w + M, w + 2 M ... share one of M multiprocessors. Which multiprocessor has which blocks of a launch no
document says, and on an H100 it is not block number modulo M. So a block takes a seat of its own multiprocessor, and
where these are taken, any other: each worker has one word of `seats`, and who first writes the epoch there is it.
A ticketed one claims its next item while it works on one, so that the claim takes no time of its own. Its items are in
the order of the list all the same: whoever has the earliest one that has not ended waits for nobody, as it works on it.

Where `stamps` is not null a block leaves four words of 64 bits for each item, at the item's number: when it began to
wait, when it began to work, when it had ended, all in nanoseconds of the device, and the multiprocessor.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.kernel import Kernel
from kernels.llvm.module import Module
from kernels.ptx.persistent import AWAIT
from kernels.ptx.tasks.threads import RESIDENT, THREADS, shared_memory
from kernels.target import Target

_SHARED = """
@ticket = internal addrspace(3) global i32 undef, align 4
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) convergent nounwind
declare void @llvm.nvvm.nanosleep(i32)
declare i64 @llvm.nvvm.read.ptx.sreg.globaltimer()
declare i32 @llvm.nvvm.read.ptx.sreg.smid()
define internal void @stamp(i1 %asked, ptr addrspace(1) %stamps, i32 %number, i32 %which) nounwind {
entry:
  br i1 %asked, label %write, label %done
write:
  %row = shl i32 %number, 2
  %place = add i32 %row, %which
  %place64 = zext i32 %place to i64
  %at = getelementptr i64, ptr addrspace(1) %stamps, i64 %place64
  %now = call i64 @llvm.nvvm.read.ptx.sreg.globaltimer()
  store i64 %now, ptr addrspace(1) %at, align 8
  %last = icmp eq i32 %which, 2
  br i1 %last, label %where, label %done
where:
  %multiprocessor = call i32 @llvm.nvvm.read.ptx.sreg.smid()
  %multiprocessor64 = zext i32 %multiprocessor to i64
  %beside = getelementptr i64, ptr addrspace(1) %at, i64 1
  store i64 %multiprocessor64, ptr addrspace(1) %beside, align 8
  br label %done
done:
  ret void
}
"""

_ITEM = """
  %place = mul i32 %number, 8
  %place64 = zext i32 %place to i64
  %item = getelementptr i32, ptr addrspace(1) %items, i64 %place64
  %more_at = getelementptr i32, ptr addrspace(1) %item, i64 4
  %words = load <4 x i32>, ptr addrspace(1) %item, align 16
  %others = load <4 x i32>, ptr addrspace(1) %more_at, align 16
  %run = extractelement <4 x i32> %words, i32 0
  %block = extractelement <4 x i32> %words, i32 1
  %task = extractelement <4 x i32> %words, i32 2
  %from = extractelement <4 x i32> %words, i32 3
  %first = extractelement <4 x i32> %others, i32 0
  %end = extractelement <4 x i32> %others, i32 1
  %places = extractelement <4 x i32> %others, i32 2
  call void @stamp(i1 %asked, ptr addrspace(1) %stamps, i32 %number, i32 0)
"""

# The threads of a block share the addresses of an item and its waits, and meet behind them.
_AWAITED = f"""
  br label %carry
carry:
  %which = phi i32 [ %thread, %decode ], [ %further, %carried ]
  %carries = icmp ult i32 %which, %places
  br i1 %carries, label %carried, label %ready
carried:
  %slot = add i32 %from, %which
  %slot64 = zext i32 %slot to i64
  %address_at = getelementptr ptr, ptr addrspace(1) %pointers, i64 %slot64
  %address = load ptr, ptr addrspace(1) %address_at, align 8
  %which64 = zext i32 %which to i64
  %home = getelementptr ptr, ptr addrspace(3) @addresses, i64 %which64
  store ptr %address, ptr addrspace(3) %home, align 8
  %further = add i32 %which, {THREADS}
  br label %carry
ready:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  call void @prepare_task(i32 %task, ptr addrspacecast (ptr addrspace(3) @addresses to ptr), i32 %block)
  br label %prepared
prepared:
  %mine = add i32 %first, %thread
  br label %more
more:
  %at = phi i32 [ %mine, %prepared ], [ %later, %wait ]
  %waiting = icmp ult i32 %at, %end
  br i1 %waiting, label %wait, label %together
wait:
  %pair = mul i32 %at, 2
  %pair64 = zext i32 %pair to i64
  %wait_at = getelementptr i32, ptr addrspace(1) %waits, i64 %pair64
  %both = load <2 x i32>, ptr addrspace(1) %wait_at, align 8
  %counter = extractelement <2 x i32> %both, i32 0
  %total = extractelement <2 x i32> %both, i32 1
  %counter64 = zext i32 %counter to i64
  %counter_at = getelementptr i32, ptr addrspace(1) %counters, i64 %counter64
  %target = mul i32 %epoch, %total
  call void @await(ptr addrspace(1) %counter_at, i32 %target, ptr addrspace(1) %errors)
  %later = add i32 %at, {THREADS}
  br label %more
together:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
"""

# All threads run the task; one of them then says that the block has ended, and goes on at NEXT as the others do.
_RUN = """
  call void @stamp(i1 %asked, ptr addrspace(1) %stamps, i32 %number, i32 1)
  call void @run_task(i32 %task, ptr addrspacecast (ptr addrspace(3) @addresses to ptr), i32 %block)
  br label %ran
ran:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  call void @stamp(i1 %asked, ptr addrspace(1) %stamps, i32 %number, i32 2)
  br i1 %leads, label %publish, label %NEXT
publish:
  %run64 = zext i32 %run to i64
  %raised = getelementptr i32, ptr addrspace(1) %counters, i64 %run64
  call void asm sideeffect "red.release.gpu.global.add.u32 [$0], $1;", "l,r,~{memory}"(ptr addrspace(1) %raised, i32 1)
  br label %NEXT
done:
  ret void
}
"""

_TICKETED = (
    """
define ptx_kernel void @ticketed(ptr addrspace(1) %items, i32 %count, ptr addrspace(1) %waits,
                                 ptr addrspace(1) %pointers, ptr addrspace(1) %counters, ptr addrspace(1) %claimed,
                                 i32 %base, ptr addrspace(1) %errors, i32 %epoch,
                                 ptr addrspace(1) %stamps) ATTRIBUTES {
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %leads = icmp eq i32 %thread, 0
  %stamped = icmp ne ptr addrspace(1) %stamps, null
  %asked = and i1 %leads, %stamped
  br i1 %leads, label %begin, label %share
begin:
  %drawn = atomicrmw add ptr addrspace(1) %claimed, i32 1 syncscope("device") monotonic
  br label %share
share:
  %next = phi i32 [ 0, %entry ], [ %drawn, %begin ], [ 0, %ran ], [ %following, %publish ]
  br i1 %leads, label %tell, label %shared
tell:
  store i32 %next, ptr addrspace(3) @ticket, align 4
  br label %shared
shared:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %raw = load i32, ptr addrspace(3) @ticket, align 4
  %number = sub i32 %raw, %base
  %left = icmp ult i32 %number, %count
  br i1 %left, label %decode, label %done
decode:"""
    + _ITEM
    + _AWAITED
    + """
  br i1 %leads, label %claim, label %go
claim:
  %claimed_next = atomicrmw add ptr addrspace(1) %claimed, i32 1 syncscope("device") monotonic
  br label %go
go:
  %following = phi i32 [ 0, %together ], [ %claimed_next, %claim ]"""
    + _RUN.replace("NEXT", "share")
)

_PINNED = (
    """
define ptx_kernel void @pinned(ptr addrspace(1) %lists, ptr addrspace(1) %items, ptr addrspace(1) %waits,
                               ptr addrspace(1) %pointers, ptr addrspace(1) %counters, ptr addrspace(1) %seats,
                               ptr addrspace(1) %errors, i32 %epoch, ptr addrspace(1) %stamps) ATTRIBUTES {
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %leads = icmp eq i32 %thread, 0
  %stamped = icmp ne ptr addrspace(1) %stamps, null
  %asked = and i1 %leads, %stamped
  br i1 %leads, label %arrive, label %seated
arrive:
  %blocks = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %share = udiv i32 %blocks, RESIDENT
  %some = icmp ne i32 %share, 0
  %multiprocessors = select i1 %some, i32 %share, i32 1
  %here = call i32 @llvm.nvvm.read.ptx.sreg.smid()
  %start = urem i32 %here, %multiprocessors
  br label %try
try:
  %seat = phi i32 [ %start, %arrive ], [ %next_seat, %taken ]
  %seat64 = zext i32 %seat to i64
  %seat_at = getelementptr i32, ptr addrspace(1) %seats, i64 %seat64
  %last = atomicrmw xchg ptr addrspace(1) %seat_at, i32 %epoch syncscope("device") monotonic
  %free = icmp ne i32 %last, %epoch
  br i1 %free, label %sit, label %taken
taken:
  %beside = add i32 %seat, %multiprocessors
  %inside = icmp ult i32 %beside, %blocks
  %column = urem i32 %seat, %multiprocessors
  %other = add i32 %column, 1
  %wrapped = urem i32 %other, %multiprocessors
  %next_seat = select i1 %inside, i32 %beside, i32 %wrapped
  br label %try
sit:
  store i32 %seat, ptr addrspace(3) @ticket, align 4
  br label %seated
seated:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %worker = load i32, ptr addrspace(3) @ticket, align 4
  %worker64 = zext i32 %worker to i64
  %list = getelementptr i32, ptr addrspace(1) %lists, i64 %worker64
  %next_list = getelementptr i32, ptr addrspace(1) %list, i64 1
  %begin = load i32, ptr addrspace(1) %list, align 4
  %stop = load i32, ptr addrspace(1) %next_list, align 4
  br label %fetch
fetch:
  %number = phi i32 [ %begin, %seated ], [ %following, %ran ], [ %following, %publish ]
  %left = icmp ult i32 %number, %stop
  br i1 %left, label %decode, label %done
decode:
  %following = add i32 %number, 1"""
    + _ITEM
    + _AWAITED
    + _RUN.replace("NEXT", "fetch")
)


def program_module(kernels: Sequence[Kernel], target: Target, *, persistent: bool = True) -> str:
    """The IR of a program whose tasks are these kernels, by their numbers; or of the kernels of each task alone."""
    module = Module(target)
    memory = shared_memory(module)
    for kernel in kernels:
        module.include(kernel.module)
    scratch = f"ptr addrspacecast (ptr addrspace(3) {memory} to ptr)"
    entries, preludes = [kernel.name for kernel in kernels], [kernel.prelude for kernel in kernels]
    dispatch = _dispatch("run_task", entries, scratch) + _dispatch("prepare_task", preludes, scratch)
    alone = "".join(
        f"define ptx_kernel void @launch_{kernel.name}(ptr addrspace(1) %pointers) {_attributes(kernel.resident)} {{\n"
        "  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()\n  %block64 = zext i32 %block to i64\n"
        "  %table = addrspacecast ptr addrspace(1) %pointers to ptr\n"
        + (f"  call void @{kernel.prelude}(ptr %table, i64 %block64, {scratch})\n" if kernel.prelude else "")
        + f"  call void @{kernel.name}(ptr %table, i64 %block64, {scratch})\n  ret void\n}}\n"
        for kernel in kernels
    )
    tasks = module.text().replace("\ndefine void @", "\ndefine internal void @")
    for name in ("tid.x", "ctaid.x"):
        tasks = tasks.replace(f"declare i32 @llvm.nvvm.read.ptx.sreg.{name}()\n", "")
    tasks = tasks.replace("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)\n", "")
    helpers = AWAIT.replace("#0", "convergent noinline nounwind")
    most = max((len(kernel.operands) for kernel in kernels), default=1)
    addresses = f"@addresses = internal addrspace(3) global [{max(1, most)} x ptr] undef, align 8\n"
    few = resident_blocks(kernels)
    attributes = _attributes(few)
    together = [addresses, helpers, dispatch]
    together += [one.replace("ATTRIBUTES", attributes).replace("RESIDENT", str(few)) for one in (_TICKETED, _PINNED)]
    return "".join((tasks, _SHARED, *(together if persistent else ()), alone))


def resident_blocks(kernels: Sequence[Kernel]) -> int:
    """Blocks of a program that a multiprocessor holds at once: as many as of the task with the most registers."""
    return min((kernel.resident for kernel in kernels), default=RESIDENT)


def _attributes(resident: int) -> str:
    return f'convergent nounwind "nvvm.reqntid"="{THREADS}" "nvvm.minctasm"="{resident}"'


def _dispatch(name: str, functions: Sequence[str], scratch: str) -> str:
    """A function that calls one of these by its number; nothing where there is no name."""
    there = [(number, function) for number, function in enumerate(functions) if function]
    cases = " ".join(f"i32 {number}, label %task{number}" for number, _ in there)
    calls = "".join(
        f"task{number}:\n  call void @{function}(ptr %table, i64 %block64, {scratch})\n  ret void\n"
        for number, function in there
    )
    return (
        f"define internal void @{name}(i32 %task, ptr %table, i32 %block) convergent nounwind {{\nentry:\n"
        "  %block64 = zext i32 %block to i64\n"
        f"  switch i32 %task, label %none [ {cases} ]\n{calls}none:\n  ret void\n}}\n"
    )

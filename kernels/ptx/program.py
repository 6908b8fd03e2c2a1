"""Programs of tasks as one module: a persistent kernel whose blocks claim items, and a kernel for each task alone.

    ticketed(items, count, waits, pointers, counters, claimed, base, errors, epoch)
    pinned(lists, items, waits, pointers, counters, errors, epoch)
    launch_NAME(pointers)                     the task NAME with a block of the grid for each of its own

An item is eight words: a run, a block of it, the number of its task, where the run's addresses begin among `pointers`,
the first of its waits, and the one behind the last. A wait is two words: a run, and how many blocks it has, all of
which must have ended. Each run has one counter; counters and claims only grow, and the number of the launch, `epoch`,
from 1 on, says where they were. How signals and waits are made is said in `kernels.ptx.persistent`.

A pinned block b has the items from lists[b] on, to those of the next one; all blocks have to be resident at once.
A ticketed one claims its next item while it works on one, so that the claim takes no time of its own. Its items are in
the order of the list all the same: whoever has the earliest one that has not ended waits for nobody, as it works on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.kernel import Kernel
from kernels.llvm.module import Module
from kernels.ptx.persistent import AWAIT
from kernels.ptx.tasks.threads import RESIDENT, THREADS, shared_memory
from kernels.target import Target

_ATTRIBUTES = f'convergent nounwind "nvvm.reqntid"="{THREADS}" "nvvm.minctasm"="{RESIDENT}"'

_SHARED = """
@ticket = internal addrspace(3) global i32 undef, align 4
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) convergent nounwind
declare void @llvm.nvvm.nanosleep(i32)
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
"""

# The threads of a block share the waits of an item, and meet behind them; the label is that of the block before.
_AWAITED = f"""
  %mine = add i32 %first, %thread
  br label %more
more:
  %at = phi i32 [ %mine, %LABEL ], [ %later, %wait ]
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
  %from64 = zext i32 %from to i64
  %table_at = getelementptr ptr, ptr addrspace(1) %pointers, i64 %from64
  %table = addrspacecast ptr addrspace(1) %table_at to ptr
  call void @run_task(i32 %task, ptr %table, i32 %block)
  br label %ran
ran:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br i1 %leads, label %publish, label %NEXT
publish:
  %run64 = zext i32 %run to i64
  fence syncscope("device") acq_rel
  %raised = getelementptr i32, ptr addrspace(1) %counters, i64 %run64
  %old = atomicrmw add ptr addrspace(1) %raised, i32 1 syncscope("device") monotonic
  br label %NEXT
done:
  ret void
}
"""

_TICKETED = (
    f"""
define ptx_kernel void @ticketed(ptr addrspace(1) %items, i32 %count, ptr addrspace(1) %waits,
                                 ptr addrspace(1) %pointers, ptr addrspace(1) %counters, ptr addrspace(1) %claimed,
                                 i32 %base, ptr addrspace(1) %errors, i32 %epoch) {_ATTRIBUTES} {{
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %leads = icmp eq i32 %thread, 0
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
    + _AWAITED.replace("LABEL", "decode")
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
    f"""
define ptx_kernel void @pinned(ptr addrspace(1) %lists, ptr addrspace(1) %items, ptr addrspace(1) %waits,
                               ptr addrspace(1) %pointers, ptr addrspace(1) %counters, ptr addrspace(1) %errors,
                               i32 %epoch) {_ATTRIBUTES} {{
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %worker = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %leads = icmp eq i32 %thread, 0
  %worker64 = zext i32 %worker to i64
  %list = getelementptr i32, ptr addrspace(1) %lists, i64 %worker64
  %next_list = getelementptr i32, ptr addrspace(1) %list, i64 1
  %begin = load i32, ptr addrspace(1) %list, align 4
  %stop = load i32, ptr addrspace(1) %next_list, align 4
  br label %fetch
fetch:
  %number = phi i32 [ %begin, %entry ], [ %following, %ran ], [ %following, %publish ]
  %left = icmp ult i32 %number, %stop
  br i1 %left, label %decode, label %done
decode:
  %following = add i32 %number, 1"""
    + _ITEM
    + """
  %waits_any = icmp ult i32 %first, %end
  br i1 %waits_any, label %begin_waits, label %go
begin_waits:"""
    + _AWAITED.replace("LABEL", "begin_waits")
    + """
  br label %go
go:"""
    + _RUN.replace("NEXT", "fetch")
)


def program_module(kernels: Sequence[Kernel], target: Target, *, persistent: bool = True) -> str:
    """The IR of a program whose tasks are these kernels, by their numbers; or of the kernels of each task alone."""
    module = Module(target)
    memory = shared_memory(module)
    for kernel in kernels:
        module.include(kernel.module)
    cases = " ".join(f"i32 {number}, label %task{number}" for number in range(len(kernels)))
    scratch = f"ptr addrspacecast (ptr addrspace(3) {memory} to ptr)"
    calls = "".join(
        f"task{number}:\n  call void @{kernel.name}(ptr %table, i64 %block64, {scratch})\n  ret void\n"
        for number, kernel in enumerate(kernels)
    )
    dispatch = (
        "define internal void @run_task(i32 %task, ptr %table, i32 %block) convergent nounwind {\nentry:\n"
        "  %block64 = zext i32 %block to i64\n"
        f"  switch i32 %task, label %none [ {cases} ]\n{calls}none:\n  ret void\n}}\n"
    )
    alone = "".join(
        f"define ptx_kernel void @launch_{kernel.name}(ptr addrspace(1) %pointers) {_ATTRIBUTES} {{\n"
        "  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()\n  %block64 = zext i32 %block to i64\n"
        "  %table = addrspacecast ptr addrspace(1) %pointers to ptr\n"
        f"  call void @{kernel.name}(ptr %table, i64 %block64, {scratch})\n  ret void\n}}\n"
        for kernel in kernels
    )
    tasks = module.text().replace("\ndefine void @", "\ndefine internal void @")
    for name in ("tid.x", "ctaid.x"):
        tasks = tasks.replace(f"declare i32 @llvm.nvvm.read.ptx.sreg.{name}()\n", "")
    tasks = tasks.replace("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)\n", "")
    helpers = AWAIT.replace("#0", "convergent noinline nounwind")
    return "".join((tasks, _SHARED, *((helpers, dispatch, _TICKETED, _PINNED) if persistent else ()), alone))

"""Programs of tasks as one module: a persistent kernel whose blocks claim items, and a kernel for each task alone.

    ticketed(items, count, waits, runs, pointers, counters, totals, claimed, base, errors, epoch)
    launch_NAME(pointers)                     the task NAME with a block of the grid for each of its own

An item is four words: a run, a block of it, the first of its waits, and the one behind the last. A wait is two words: a
run, and how many of its blocks must have ended. A run is two words: the number of its task, and where its addresses
begin among `pointers`. Each run has one counter; counters and claims only grow, and the number of the launch, `epoch`,
says where they were. How signals and waits are made is said in `kernels.ptx.persistent`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernels.kernel import Kernel
from kernels.llvm.module import Module
from kernels.ptx.persistent import AWAIT, FULFIL
from kernels.ptx.tasks.threads import THREADS, shared_memory
from kernels.target import Target

RESIDENT = 2  # blocks of a multiprocessor that registers are kept for
_ATTRIBUTES = f'convergent nounwind "nvvm.reqntid"="{THREADS}" "nvvm.minctasm"="{RESIDENT}"'

_SHARED = """
@ticket = internal addrspace(3) global i32 undef, align 4
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) convergent nounwind
declare void @llvm.nvvm.nanosleep(i32)
"""

_TICKETED = f"""
define ptx_kernel void @ticketed(ptr addrspace(1) %items, i32 %count, ptr addrspace(1) %waits,
                                 ptr addrspace(1) %runs, ptr addrspace(1) %pointers, ptr addrspace(1) %counters,
                                 ptr addrspace(1) %totals, ptr addrspace(1) %claimed, i32 %base,
                                 ptr addrspace(1) %errors, i32 %epoch) {_ATTRIBUTES} {{
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %leads = icmp eq i32 %thread, 0
  br label %claim
claim:
  br i1 %leads, label %draw, label %share
draw:
  %drawn = atomicrmw add ptr addrspace(1) %claimed, i32 1 syncscope("device") monotonic
  store i32 %drawn, ptr addrspace(3) @ticket, align 4
  br label %share
share:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %raw = load i32, ptr addrspace(3) @ticket, align 4
  %number = sub i32 %raw, %base
  %left = icmp ult i32 %number, %count
  br i1 %left, label %decode, label %done
decode:
  %place = mul i32 %number, 4
  %place64 = zext i32 %place to i64
  %item = getelementptr i32, ptr addrspace(1) %items, i64 %place64
  %words = load <4 x i32>, ptr addrspace(1) %item, align 16
  %run = extractelement <4 x i32> %words, i32 0
  %block = extractelement <4 x i32> %words, i32 1
  %first = extractelement <4 x i32> %words, i32 2
  %end = extractelement <4 x i32> %words, i32 3
  %mine = add i32 %first, %thread
  br label %more
more:
  %at = phi i32 [ %mine, %decode ], [ %following, %wait ]
  %waiting = icmp ult i32 %at, %end
  br i1 %waiting, label %wait, label %together
wait:
  %pair = mul i32 %at, 2
  %pair64 = zext i32 %pair to i64
  %counter_at = getelementptr i32, ptr addrspace(1) %waits, i64 %pair64
  %value_at = getelementptr i32, ptr addrspace(1) %counter_at, i64 1
  %counter = load i32, ptr addrspace(1) %counter_at, align 4
  %value = load i32, ptr addrspace(1) %value_at, align 4
  call void @fulfil(i32 %counter, i32 %value, i32 %epoch, ptr addrspace(1) %counters, ptr addrspace(1) %totals,
                    ptr addrspace(1) %errors)
  %following = add i32 %at, {THREADS}
  br label %more
together:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %run64 = zext i32 %run to i64
  %run_place = mul i64 %run64, 2
  %task_at = getelementptr i32, ptr addrspace(1) %runs, i64 %run_place
  %from_at = getelementptr i32, ptr addrspace(1) %task_at, i64 1
  %task = load i32, ptr addrspace(1) %task_at, align 4
  %from = load i32, ptr addrspace(1) %from_at, align 4
  %from64 = zext i32 %from to i64
  %table_at = getelementptr ptr, ptr addrspace(1) %pointers, i64 %from64
  %table = addrspacecast ptr addrspace(1) %table_at to ptr
  call void @run_task(i32 %task, ptr %table, i32 %block)
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br i1 %leads, label %publish, label %claim
publish:
  fence syncscope("device") acq_rel
  %raised = getelementptr i32, ptr addrspace(1) %counters, i64 %run64
  %old = atomicrmw add ptr addrspace(1) %raised, i32 1 syncscope("device") monotonic
  br label %claim
done:
  ret void
}}
"""


def program_module(kernels: Sequence[Kernel], target: Target) -> str:
    """The IR of a program whose tasks are these kernels, by their numbers."""
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
        f"  switch i32 %task, label %none [ {cases} ]\n{calls}none:\n  unreachable\n}}\n"
    )
    alone = "".join(
        f"define ptx_kernel void @launch_{kernel.name}(ptr addrspace(1) %pointers) {_ATTRIBUTES} {{\n"
        "  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()\n  %block64 = zext i32 %block to i64\n"
        "  %table = addrspacecast ptr addrspace(1) %pointers to ptr\n"
        f"  call void @{kernel.name}(ptr %table, i64 %block64, {scratch})\n  ret void\n}}\n"
        for kernel in kernels
    )
    tasks = module.text().replace("\ndefine void @", "\ndefine internal void @").replace('" #0 {', '" #0 {')
    for name in ("tid.x", "ctaid.x"):
        tasks = tasks.replace(f"declare i32 @llvm.nvvm.read.ptx.sreg.{name}()\n", "")
    tasks = tasks.replace("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)\n", "")
    helpers = (AWAIT + FULFIL).replace("#0", "convergent noinline nounwind")
    return "".join((tasks, _SHARED, helpers, dispatch, _TICKETED, alone))

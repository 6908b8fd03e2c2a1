"""Persistent programs for NVIDIA GPUs as LLVM IR: blocks that interpret lists of instructions and wait for each other.

One module serves every program, since programs are data. A *task* stands for a block of work: it checks that everything
it depends on has been written in this epoch, and writes its own mark, one word for each thread, read by other threads
than those that wrote it; so a missing barrier, fence or wait shows as a count of errors.

A counter counts tasks that have ended, as many as it was told; several blocks raise it, each by one. The rules of
signalling, each of which is a bug when left out:
- all threads' stores, then a barrier of the block, then one thread's fence at device scope and its additions, which
  carry no order of their own here (LLVM drops it);
- a load with acquire at device scope that sees the count, then a barrier of the block, then the reads;
- counters only grow: an epoch's targets include what the epochs before have counted, and nothing is cleared;
- no pointer is `noalias`: a read-only one would be loaded through the non-coherent cache and could be stale.

A loop that waits too long counts a failure and goes on, so that a program that hangs is found and ends.
"""

from __future__ import annotations

THREADS = 128  # of a block
PATIENCE = 1 << 22  # looks at a counter before a wait is called a hang

_DECLARATIONS = """
target triple = "nvptx64-nvidia-cuda"
@ticket = internal addrspace(3) global i32 undef, align 4
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) #1
declare void @llvm.nvvm.nanosleep(i32)
"""

# Waits until the word at %at is at least %target (compared as a difference, so that it may wrap around). The first look
# acquires, as mostly nobody has to wait; the others do not, since each acquisition empties the multiprocessor's cache
# for the blocks beside; the last one does.
AWAIT = f"""
define internal void @await(ptr addrspace(1) %at, i32 %target, ptr addrspace(1) %errors) #0 {{
entry:
  %first = load atomic i32, ptr addrspace(1) %at syncscope("device") acquire, align 4
  %first_ahead = sub i32 %first, %target
  %at_once = icmp sge i32 %first_ahead, 0
  br i1 %at_once, label %done, label %look
look:
  %count = phi i32 [ 0, %entry ], [ %more, %nap ]
  %value = load atomic i32, ptr addrspace(1) %at syncscope("device") monotonic, align 4
  %ahead = sub i32 %value, %target
  %there = icmp sge i32 %ahead, 0
  br i1 %there, label %last, label %nap
nap:
  call void @llvm.nvvm.nanosleep(i32 40)
  %more = add i32 %count, 1
  %late = icmp ugt i32 %more, {PATIENCE}
  br i1 %late, label %hung, label %look
last:
  %again = load atomic i32, ptr addrspace(1) %at syncscope("device") acquire, align 4
  br label %done
hung:
  %hangs = getelementptr i32, ptr addrspace(1) %errors, i64 1
  %old = atomicrmw add ptr addrspace(1) %hangs, i32 1 syncscope("device") monotonic
  br label %done
done:
  ret void
}}
"""

# Waits until counter %counter has counted %value tasks of this epoch; it counts as many as %totals says in each.
_FULFIL = """
define internal void @fulfil(i32 %counter, i32 %value, i32 %epoch, ptr addrspace(1) %counters,
                             ptr addrspace(1) %totals, ptr addrspace(1) %errors) #0 {
entry:
  %counter64 = zext i32 %counter to i64
  %at = getelementptr i32, ptr addrspace(1) %counters, i64 %counter64
  %total_at = getelementptr i32, ptr addrspace(1) %totals, i64 %counter64
  %total = load i32, ptr addrspace(1) %total_at, align 4
  %before = sub i32 %epoch, 1
  %base = mul i32 %before, %total
  %target = add i32 %base, %value
  call void @await(ptr addrspace(1) %at, i32 %target, ptr addrspace(1) %errors)
  ret void
}
"""

# Everything this block has written is there for whoever sees a counter of row %row of the list raised.
_SIGNAL = """
define internal void @signal(i32 %row, ptr addrspace(1) %rows, ptr addrspace(1) %list, ptr addrspace(1) %counters) #0 {
entry:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %leads = icmp eq i32 %thread, 0
  br i1 %leads, label %publish, label %done
publish:
  fence syncscope("device") acq_rel
  %row64 = zext i32 %row to i64
  %first = getelementptr i32, ptr addrspace(1) %rows, i64 %row64
  %second = getelementptr i32, ptr addrspace(1) %first, i64 1
  %begin = load i32, ptr addrspace(1) %first, align 4
  %end = load i32, ptr addrspace(1) %second, align 4
  br label %more
more:
  %at = phi i32 [ %begin, %publish ], [ %following, %raise ]
  %left = icmp ult i32 %at, %end
  br i1 %left, label %raise, label %done
raise:
  %at64 = zext i32 %at to i64
  %which_at = getelementptr i32, ptr addrspace(1) %list, i64 %at64
  %which = load i32, ptr addrspace(1) %which_at, align 4
  %which64 = zext i32 %which to i64
  %counter = getelementptr i32, ptr addrspace(1) %counters, i64 %which64
  %old = atomicrmw add ptr addrspace(1) %counter, i32 1 syncscope("device") monotonic
  %following = add i32 %at, 1
  br label %more
done:
  ret void
}
"""

# Checks the marks of what task %task depends on, those of the neighbouring thread, and writes its own.
_TASK = f"""
define internal void @task(i32 %task, i32 %epoch, ptr addrspace(1) %marks, ptr addrspace(1) %starts,
                           ptr addrspace(1) %needs, ptr addrspace(1) %errors) #0 {{
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %next = add i32 %thread, 33
  %other = urem i32 %next, {THREADS}
  %number = zext i32 %task to i64
  %first = getelementptr i32, ptr addrspace(1) %starts, i64 %number
  %second = getelementptr i32, ptr addrspace(1) %first, i64 1
  %begin = load i32, ptr addrspace(1) %first, align 4
  %end = load i32, ptr addrspace(1) %second, align 4
  br label %more
more:
  %at = phi i32 [ %begin, %entry ], [ %following, %checked ]
  %left = icmp ult i32 %at, %end
  br i1 %left, label %check, label %write
check:
  %at64 = zext i32 %at to i64
  %needed = getelementptr i32, ptr addrspace(1) %needs, i64 %at64
  %source = load i32, ptr addrspace(1) %needed, align 4
  %row = mul i32 %source, {THREADS}
  %place = add i32 %row, %other
  %place64 = zext i32 %place to i64
  %mark = getelementptr i32, ptr addrspace(1) %marks, i64 %place64
  %seen = load i32, ptr addrspace(1) %mark, align 4
  %right = icmp eq i32 %seen, %epoch
  br i1 %right, label %checked, label %wrong
wrong:
  %old = atomicrmw add ptr addrspace(1) %errors, i32 1 syncscope("device") monotonic
  br label %checked
checked:
  %following = add i32 %at, 1
  br label %more
write:
  %mine = mul i32 %task, {THREADS}
  %slot = add i32 %mine, %thread
  %slot64 = zext i32 %slot to i64
  %to = getelementptr i32, ptr addrspace(1) %marks, i64 %slot64
  store i32 %epoch, ptr addrspace(1) %to, align 4
  ret void
}}
"""

# Instructions are triples: 0, task, unused: run; 1, counter, value: wait.
_PINNED = """
define ptx_kernel void @pinned(ptr addrspace(1) %code, ptr addrspace(1) %lists, ptr addrspace(1) %counters,
                               ptr addrspace(1) %totals, ptr addrspace(1) %rows, ptr addrspace(1) %raised,
                               ptr addrspace(1) %marks, ptr addrspace(1) %starts, ptr addrspace(1) %needs,
                               ptr addrspace(1) %errors, i32 %epoch) #2 {
entry:
  %worker = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %leads = icmp eq i32 %thread, 0
  %worker64 = zext i32 %worker to i64
  %first = getelementptr i32, ptr addrspace(1) %lists, i64 %worker64
  %second = getelementptr i32, ptr addrspace(1) %first, i64 1
  %begin = load i32, ptr addrspace(1) %first, align 4
  %end = load i32, ptr addrspace(1) %second, align 4
  br label %fetch
fetch:
  %at = phi i32 [ %begin, %entry ], [ %next, %together ], [ %next, %run ]
  %left = icmp ult i32 %at, %end
  br i1 %left, label %decode, label %done
decode:
  %next = add i32 %at, 1
  %place = mul i32 %at, 3
  %place64 = zext i32 %place to i64
  %kind_at = getelementptr i32, ptr addrspace(1) %code, i64 %place64
  %one_at = getelementptr i32, ptr addrspace(1) %kind_at, i64 1
  %two_at = getelementptr i32, ptr addrspace(1) %kind_at, i64 2
  %kind = load i32, ptr addrspace(1) %kind_at, align 4
  %one = load i32, ptr addrspace(1) %one_at, align 4
  %two = load i32, ptr addrspace(1) %two_at, align 4
  %waits = icmp eq i32 %kind, 1
  br i1 %waits, label %wait, label %run
wait:
  br i1 %leads, label %spin, label %together
spin:
  call void @fulfil(i32 %one, i32 %two, i32 %epoch, ptr addrspace(1) %counters, ptr addrspace(1) %totals,
                    ptr addrspace(1) %errors)
  br label %together
together:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br label %fetch
run:
  call void @task(i32 %one, i32 %epoch, ptr addrspace(1) %marks, ptr addrspace(1) %starts, ptr addrspace(1) %needs,
                  ptr addrspace(1) %errors)
  call void @signal(i32 %one, ptr addrspace(1) %rows, ptr addrspace(1) %raised, ptr addrspace(1) %counters)
  br label %fetch
done:
  ret void
}
"""

# Items are triples: task, first wait, behind the last wait; waits are pairs: counter, value. A block claims tickets
# until there are none.
_TICKETED = f"""
define ptx_kernel void @ticketed(ptr addrspace(1) %items, i32 %count, ptr addrspace(1) %waits,
                                 ptr addrspace(1) %counters, ptr addrspace(1) %totals, ptr addrspace(1) %rows,
                                 ptr addrspace(1) %raised, ptr addrspace(1) %claimed, i32 %base,
                                 ptr addrspace(1) %marks, ptr addrspace(1) %starts, ptr addrspace(1) %needs,
                                 ptr addrspace(1) %errors, i32 %epoch) #2 {{
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
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %left = icmp ult i32 %number, %count
  br i1 %left, label %decode, label %done
decode:
  %place = mul i32 %number, 3
  %place64 = zext i32 %place to i64
  %task_at = getelementptr i32, ptr addrspace(1) %items, i64 %place64
  %begin_at = getelementptr i32, ptr addrspace(1) %task_at, i64 1
  %end_at = getelementptr i32, ptr addrspace(1) %task_at, i64 2
  %task = load i32, ptr addrspace(1) %task_at, align 4
  %begin = load i32, ptr addrspace(1) %begin_at, align 4
  %end = load i32, ptr addrspace(1) %end_at, align 4
  %mine = add i32 %begin, %thread
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
  call void @task(i32 %task, i32 %epoch, ptr addrspace(1) %marks, ptr addrspace(1) %starts, ptr addrspace(1) %needs,
                  ptr addrspace(1) %errors)
  call void @signal(i32 %task, ptr addrspace(1) %rows, ptr addrspace(1) %raised, ptr addrspace(1) %counters)
  br label %claim
done:
  ret void
}}
"""

_MEASURES = """
define ptx_kernel void @empty() #2 {
  ret void
}

; Two blocks answer each other %rounds times: block b waits for word 1 - b, then raises its own; %rows is 0, 1, 2, and
; %each 0, 1.
define ptx_kernel void @pingpong(ptr addrspace(1) %words, ptr addrspace(1) %rows, ptr addrspace(1) %each, i32 %rounds,
                                 ptr addrspace(1) %errors, i32 %from) #2 {
entry:
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %leads = icmp eq i32 %thread, 0
  %block64 = zext i32 %block to i64
  %opposite = sub i64 1, %block64
  %theirs = getelementptr i32, ptr addrspace(1) %words, i64 %opposite
  br label %round
round:
  %count = phi i32 [ 0, %entry ], [ %next, %answered ]
  %left = icmp ult i32 %count, %rounds
  br i1 %left, label %listen, label %done
listen:
  %said = add i32 %from, %count
  %target = add i32 %said, %block
  br i1 %leads, label %spin, label %together
spin:
  call void @await(ptr addrspace(1) %theirs, i32 %target, ptr addrspace(1) %errors)
  br label %together
together:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %next = add i32 %count, 1
  call void @signal(i32 %block, ptr addrspace(1) %rows, ptr addrspace(1) %each, ptr addrspace(1) %words)
  br label %answered
answered:
  br label %round
done:
  ret void
}

; One block waits %rounds times for what is there.
define ptx_kernel void @look(ptr addrspace(1) %words, ptr addrspace(1) %totals, i32 %rounds,
                             ptr addrspace(1) %errors) #2 {
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %leads = icmp eq i32 %thread, 0
  br label %round
round:
  %count = phi i32 [ 0, %entry ], [ %next, %together ]
  %left = icmp ult i32 %count, %rounds
  br i1 %left, label %listen, label %done
listen:
  %next = add i32 %count, 1
  br i1 %leads, label %spin, label %together
spin:
  call void @fulfil(i32 0, i32 0, i32 1, ptr addrspace(1) %words, ptr addrspace(1) %totals, ptr addrspace(1) %errors)
  br label %together
together:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br label %round
done:
  ret void
}

; All blocks meet %rounds times.
define ptx_kernel void @meet(ptr addrspace(1) %counter, i32 %rounds, ptr addrspace(1) %errors, i32 %from) #2 {
entry:
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %blocks = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %leads = icmp eq i32 %thread, 0
  br label %round
round:
  %count = phi i32 [ 0, %entry ], [ %next, %met ]
  %left = icmp ult i32 %count, %rounds
  br i1 %left, label %arrive, label %done
arrive:
  %next = add i32 %count, 1
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br i1 %leads, label %add, label %together
add:
  fence syncscope("device") acq_rel
  %old = atomicrmw add ptr addrspace(1) %counter, i32 1 syncscope("device") monotonic
  %grown = mul i32 %next, %blocks
  %target = add i32 %from, %grown
  call void @await(ptr addrspace(1) %counter, i32 %target, ptr addrspace(1) %errors)
  br label %together
together:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  br label %met
met:
  br label %round
done:
  ret void
}
"""

_ATTRIBUTES = f"""
attributes #0 = {{ convergent noinline nounwind }}
attributes #1 = {{ convergent nounwind }}
attributes #2 = {{ convergent nounwind "nvvm.reqntid"="{THREADS}" }}
"""

KERNELS = ("pinned", "ticketed", "empty", "pingpong", "look", "meet")


def module() -> str:
    """The IR of all kernels."""
    return "".join((_DECLARATIONS, AWAIT, _FULFIL, _SIGNAL, _TASK, _PINNED, _TICKETED, _MEASURES, _ATTRIBUTES))

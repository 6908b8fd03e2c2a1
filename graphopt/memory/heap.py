"""A counter of heap bytes, preloaded into another process: a shared library of LLVM IR with the C library's allocators.

It stands before the C library's own functions, calls them, and counts what they give and take by
`malloc_usable_size`. Aligned requests are counted once more by themselves: runtimes align tensors and scratch, and
nothing else. Linux with the GNU C library.
"""

from __future__ import annotations

import functools
import platform
import sys

from kernels.errors import KernelsError
from kernels.llvm.compile import compile_object
from kernels.llvm.link import link_shared
from kernels.target import host

# Functions of the library besides the allocators: bytes now and the most since `heap_reset`, all and aligned ones.
EXPORTED = ("heap_now", "heap_most", "heap_aligned_most", "heap_reset")
ALLOCATORS = ("malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign")

_TEXT = """
@now = internal global i64 0
@most = internal global i64 0
@aligned_now = internal global i64 0
@aligned_most = internal global i64 0
; A table of aligned blocks, by their address: free is not told how a block was asked for.
@blocks = internal global [65536 x i64] zeroinitializer

declare ptr @__libc_malloc(i64)
declare void @__libc_free(ptr)
declare ptr @__libc_calloc(i64, i64)
declare ptr @__libc_realloc(ptr, i64)
declare ptr @__libc_memalign(i64, i64)
declare i64 @malloc_usable_size(ptr)

define internal void @count(ptr %block) {
  %size = call i64 @malloc_usable_size(ptr %block)
  %before = atomicrmw add ptr @now, i64 %size monotonic
  %after = add i64 %before, %size
  %old = atomicrmw umax ptr @most, i64 %after monotonic
  ret void
}

define internal void @uncount(ptr %block) {
  %size = call i64 @malloc_usable_size(ptr %block)
  %before = atomicrmw sub ptr @now, i64 %size monotonic
  %address = ptrtoint ptr %block to i64
  %slot = call ptr @slot(i64 %address)
  %found = cmpxchg ptr %slot, i64 %address, i64 0 monotonic monotonic
  %was = extractvalue { i64, i1 } %found, 1
  br i1 %was, label %aligned, label %done
aligned:
  %rest = atomicrmw sub ptr @aligned_now, i64 %size monotonic
  br label %done
done:
  ret void
}

define internal ptr @slot(i64 %address) {
  %high = lshr i64 %address, 6
  %mixed = mul i64 %high, -7046029254386353131
  %number = lshr i64 %mixed, 48
  %slot = getelementptr [65536 x i64], ptr @blocks, i64 0, i64 %number
  ret ptr %slot
}

define internal void @count_aligned(ptr %block) {
  call void @count(ptr %block)
  %address = ptrtoint ptr %block to i64
  %slot = call ptr @slot(i64 %address)
  %free = cmpxchg ptr %slot, i64 0, i64 %address monotonic monotonic
  %taken = extractvalue { i64, i1 } %free, 1
  br i1 %taken, label %kept, label %done  ; a slot that another block has: this one is counted among all only
kept:
  %size = call i64 @malloc_usable_size(ptr %block)
  %before = atomicrmw add ptr @aligned_now, i64 %size monotonic
  %after = add i64 %before, %size
  %old = atomicrmw umax ptr @aligned_most, i64 %after monotonic
  br label %done
done:
  ret void
}

define ptr @malloc(i64 %size) {
  %block = call ptr @__libc_malloc(i64 %size)
  call void @count(ptr %block)
  ret ptr %block
}

define void @free(ptr %block) {
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %some
some:
  call void @uncount(ptr %block)
  call void @__libc_free(ptr %block)
  br label %done
done:
  ret void
}

define ptr @calloc(i64 %count, i64 %size) {
  %block = call ptr @__libc_calloc(i64 %count, i64 %size)
  call void @count(ptr %block)
  ret ptr %block
}

define ptr @realloc(ptr %old, i64 %size) {
  %none = icmp eq ptr %old, null
  br i1 %none, label %move, label %some
some:
  call void @uncount(ptr %old)
  br label %move
move:
  %block = call ptr @__libc_realloc(ptr %old, i64 %size)
  call void @count(ptr %block)
  ret ptr %block
}

define ptr @memalign(i64 %alignment, i64 %size) {
  %block = call ptr @__libc_memalign(i64 %alignment, i64 %size)
  call void @count_aligned(ptr %block)
  ret ptr %block
}

define ptr @aligned_alloc(i64 %alignment, i64 %size) {
  %block = call ptr @memalign(i64 %alignment, i64 %size)
  ret ptr %block
}

define i32 @posix_memalign(ptr %place, i64 %alignment, i64 %size) {
  %block = call ptr @memalign(i64 %alignment, i64 %size)
  %none = icmp eq ptr %block, null
  br i1 %none, label %full, label %some
some:
  store ptr %block, ptr %place
  ret i32 0
full:
  ret i32 12
}

define i64 @heap_now() {
  %value = load atomic i64, ptr @now monotonic, align 8
  ret i64 %value
}

define i64 @heap_most() {
  %value = load atomic i64, ptr @most monotonic, align 8
  ret i64 %value
}

define i64 @heap_aligned_most() {
  %most = load atomic i64, ptr @aligned_most monotonic, align 8
  ret i64 %most
}

; Begin anew: the most of all is what is held now, and of aligned blocks only those to come are counted.
define void @heap_reset() {
  %now = load atomic i64, ptr @now monotonic, align 8
  store atomic i64 %now, ptr @most monotonic, align 8
  store atomic i64 0, ptr @aligned_now monotonic, align 8
  store atomic i64 0, ptr @aligned_most monotonic, align 8
  call void @llvm.memset.p0.i64(ptr @blocks, i8 0, i64 524288, i1 false)
  ret void
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


@functools.cache
def counter() -> bytes | None:
    """The library, to be preloaded; None where there is no linker, or another C library."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return None
    try:
        target = host()
        return link_shared([compile_object(_TEXT, target)], target, exported=(*EXPORTED, *ALLOCATORS))
    except KernelsError:
        return None

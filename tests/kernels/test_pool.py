"""The worker pool: every block runs exactly once, whoever is late, on a machine with fewer cores than threads."""

from __future__ import annotations

import multiprocessing
import random
import threading

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.kernel import Operand, write_kernel
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.pool import MOST_WORKERS, Pool, PoolError
from kernels.run import Executable, aligned
from kernels.target import host

BLOCKS = 64


def _counting(spins: int) -> tuple[Executable, np.ndarray, np.ndarray]:
    """A kernel that counts each block's runs, after `spins` idle turns, and notes the scratch it was given."""
    module = Module(host())

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        def idle(_: Value, carried: tuple[Value, ...]) -> list[Value]:
            return [f.value("i64", f'call i64 asm sideeffect "", "=r,0"(i64 {carried[0].text})')]

        f.loop(0, spins, 1, idle, [block])
        count = f.at(pointers["counts"], block, "i32")
        f.value("i32", f"atomicrmw add ptr {count.text}, i32 1 seq_cst")
        f.store(f.value("i64", f"ptrtoint ptr {scratch.text} to i64"), f.at(pointers["places"], block, "i64"))

    operands = (Operand("counts", "output", DType.I32, BLOCKS), Operand("places", "output", DType.I64, BLOCKS))
    executable = Executable([write_kernel(module, "count", operands, BLOCKS, body)])
    counts, places = aligned(BLOCKS, np.int32), aligned(BLOCKS, np.int64)
    return executable, counts, places


def _runs(
    pool: Pool, executable: Executable, counts: np.ndarray, places: np.ndarray, times: int, seed: int
) -> set[int]:
    """Many runs of random numbers of blocks; the scratch addresses that were seen."""
    table = np.array([counts.ctypes.data, places.ctypes.data], np.uint64)
    chooser, seen = random.Random(seed), set[int]()
    for _ in range(times):
        blocks = chooser.randrange(BLOCKS + 1)
        counts[:] = 0
        pool.run(executable.address("count"), table.ctypes.data, blocks)
        assert (counts[:blocks] == 1).all() and (counts[blocks:] == 0).all(), counts
        seen.update(places[:blocks].tolist())
    return seen


@pytest.mark.parametrize(("threads", "spins"), [(1, 0), (2, 0), (2, 2000), (7, 50)])
def test_every_block_runs_once(threads: int, spins: int) -> None:
    executable, counts, places = _counting(spins)
    with Pool(host(), threads, scratch_bytes=100) as pool:
        seen = _runs(pool, executable, counts, places, 1500, seed=threads)
    assert 1 <= len(seen) <= threads
    assert all(place % 64 == 0 for place in seen)


def test_sleeping_workers_wake_for_the_next_run() -> None:
    executable, counts, places = _counting(200_000)
    with Pool(host(), 2, scratch_bytes=1) as pool:
        for _ in range(5):
            pause = threading.Event()
            pause.wait(0.02)  # far longer than a worker spins
            seen = _runs(pool, executable, counts, places, 3, seed=1)
    assert seen


def _busy() -> None:
    while True:
        pass


def test_a_loaded_machine_makes_it_slow_but_not_wrong() -> None:
    executable, counts, places = _counting(500)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_busy, daemon=True) for _ in range(2)]
    for other in others:
        other.start()
    try:
        with Pool(host(), 3) as pool:
            assert _runs(pool, executable, counts, places, 300, seed=3)
    finally:
        for other in others:
            other.kill()
            other.join()


def test_a_pool_refuses_a_number_of_threads_it_cannot_have() -> None:
    with pytest.raises(PoolError, match=f"1 to {MOST_WORKERS + 1} threads, not 0"):
        Pool(host(), 0)

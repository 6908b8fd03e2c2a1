"""Programs that several workers run: what waits for what, who is late, who comes and goes.

Every block of a drawn program sums all blocks of the runs before it that it needs, so that one that begins too early,
runs twice, or is left out changes what comes after it. The values of each call are others than those of the call
before: what is left from it is seen.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import random
import threading
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.emit.refusal import BAD_ARGUMENT, MODEL_BUSY, OK
from kernels.emit.rows import rows_of
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.listing import Argument, Claim, Follow, InvalidListing, Listing, ListStep, Place, Run, Ticketed, Wait
from kernels.llvm.function import Function, Value
from kernels.llvm.module import Module
from kernels.run import aligned
from kernels.target import host
from tests.kernels.interface import Library, Options, call

MOST_BLOCKS = 9
SCRATCH = 200  # bytes, in which each block keeps its sum for a while


def summing(number: int, needed: list[int], blocks: int) -> Kernel:
    """out[block] = seed + block + all that the needed runs gave, after as many idle turns as `idle` says."""
    module = Module(host())
    operands = (
        Operand("seed", "input", DType.I64, 1), Operand("idle", "input", DType.I64, blocks),
        *(Operand(f"in{place}", "input", DType.I64, size) for place, size in enumerate(needed)),
        Operand("out", "output", DType.I64, blocks),
    )  # fmt: skip

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        def idle(_: Value, carried: tuple[Value, ...]) -> list[Value]:
            return [f.value("i64", f'call i64 asm sideeffect "", "=r,0"(i64 {carried[0].text})')]

        f.store(f.add(f.load("i64", pointers["seed"]), block), scratch)
        f.loop(f.integer(0), f.load("i64", f.at(pointers["idle"], block, "i64")), 1, idle, [block])
        for place, size in enumerate(needed):

            def one(at: Value, _: tuple[Value, ...], place: int = place) -> None:
                f.store(f.add(f.load("i64", scratch), f.load("i64", f.at(pointers[f"in{place}"], at, "i64"))), scratch)

            f.loop(0, size, 1, one)
        f.store(f.load("i64", scratch), f.at(pointers["out"], block, "i64"))

    return write_kernel(module, f"sum{number}", operands, blocks, body, scratch_bytes=SCRATCH)


class Drawn:
    """A program with these runs: how many blocks each has, and the earlier runs that it needs."""

    def __init__(
        self, blocks: list[int], needs: list[list[int]], order: list[int] | None = None, whole: Collection[int] = (),
        following: Collection[int] = (),
    ) -> None:  # fmt: skip
        self.blocks, self.needs = blocks, needs
        starts = list(itertools.accumulate(blocks, initial=0))
        self.starts, total = starts[:-1], starts[-1]
        kernels = [summing(run, [blocks[one] for one in needs[run]], blocks[run]) for run in range(len(blocks))]
        runs = tuple(
            Run(
                kernels[run].name,
                (
                    Place("input", 0, 0), Place("input", 8 * self.starts[run], 1),
                    *(Place("output", 8 * self.starts[one]) for one in (*needs[run], run)),
                ),
            )
            for run in range(len(blocks))
        )  # fmt: skip
        steps: list[ListStep] = []
        for run in order or range(len(blocks)):
            steps += [Wait(one) for one in needs[run]]
            steps.append(Follow(run) if run in following else Claim(run, run in whole))
        steps += [Wait(run) for run in range(len(blocks))]
        given = (Argument("seed", DType.I64, (1,)), Argument("idle", DType.I64, (total,)))
        made = (Argument("out", DType.I64, (total,)),)
        self.listing = Listing("drawn", given, made, tuple(kernels), runs, 0, 0, Ticketed(tuple(steps), runs, 0))
        self.total = total

    def answer(self, seed: int) -> np.ndarray:
        found = np.zeros(self.total, np.uint64)
        for run, blocks in enumerate(self.blocks):
            before = sum(
                int(found[self.starts[one] : self.starts[one] + self.blocks[one]].sum()) for one in self.needs[run]
            )
            for block in range(blocks):
                found[self.starts[run] + block] = (seed + block + before) % 2**64
        return found.view(np.int64)


def calls(drawn: Drawn, library: Library, model: ctypes.c_void_p, times: int, most_idle: int, seed: int) -> None:
    """Call it so often, with other values and other delays each time."""
    generator = np.random.default_rng(seed)
    value, idle, out = aligned(1, np.int64), aligned(drawn.total, np.int64), aligned(drawn.total, np.int64)
    for number in range(times):
        value[0], out[:] = 1000 * seed + number, -1
        idle[:] = generator.integers(0, most_idle + 1, drawn.total) * generator.integers(0, 2, drawn.total)
        call(library, model, {"seed": value, "idle": idle}, out=out)
        assert (out == drawn.answer(int(value[0]))).all(), number


@st.composite
def programs(draw: st.DrawFn) -> Drawn:
    count = draw(st.integers(1, 12))
    blocks = draw(st.lists(st.integers(1, MOST_BLOCKS), min_size=count, max_size=count))
    needs = [sorted(draw(st.sets(st.integers(0, run - 1), max_size=4))) if run else [] for run in range(count)]
    forms = draw(st.lists(st.sampled_from(["shared", "whole", "follows"]), min_size=count, max_size=count))
    whole: set[int] = set()
    following: set[int] = set()
    for run, form in enumerate(forms):
        if form == "follows" and run and run - 1 in whole:
            following.add(run)
        if form == "whole" or run in following:
            whole.add(run)
    return Drawn(blocks, needs, whole=whole, following=following)


@settings(max_examples=25, deadline=None)
@given(programs(), st.integers(1, 8))
def test_any_program_with_any_number_of_workers(drawn: Drawn, threads: int) -> None:
    library = Library(drawn.listing)
    model = library.made(threads=threads)
    calls(drawn, library, model, 30, 2000, seed=threads)
    library.destroy(model)


def chain_and_sides() -> Drawn:
    """A chain of single blocks beside wide runs, and a last one that needs them all."""
    return Drawn([1, 9, 1, 9, 1, 3, 9], [[], [], [0], [1], [2], [2, 3], [4, 5]])


@pytest.mark.parametrize(("threads", "idle"), [(1, 0), (2, 0), (2, 20_000), (7, 500)])
def test_many_calls(threads: int, idle: int) -> None:
    drawn = chain_and_sides()
    library = Library(drawn.listing)
    model = library.made(threads=threads, pinned=threads == 2)
    calls(drawn, library, model, 600, idle, seed=1)
    library.destroy(model)


def test_an_order_of_its_own() -> None:
    drawn = Drawn([2, 2, 2, 2], [[], [], [0], [1]], order=[1, 3, 0, 2])
    library = Library(drawn.listing)
    model = library.made(threads=3)
    calls(drawn, library, model, 100, 100, seed=2)
    library.destroy(model)


def test_one_worker_has_a_chain_and_others_need_what_it_made_first() -> None:
    """Run 3 waits for the first of a chain, the last of the chain for run 1, which two others share with nobody."""
    drawn = Drawn([3, 9, 2, 4, 1, 2], [[], [], [0], [0], [1, 2], [3, 4]], [1, 0, 2, 4, 3, 5], {0, 2, 4}, {2, 4})
    library = Library(drawn.listing)
    for threads in (1, 2, 5):
        model = library.made(threads=threads)
        calls(drawn, library, model, 200, 2000, seed=threads)
        library.destroy(model)


def test_rows_of_more_blocks_than_two_bytes_count_have_wider_words() -> None:
    for blocks, bits in ((9, 16), (1 << 16, 32)):
        drawn = Drawn([2, blocks, 1], [[], [], [0, 1]], whole=(1,))
        assert drawn.listing.ticketed is not None
        assert rows_of(drawn.listing, drawn.listing.ticketed).bits == bits
        library = Library(drawn.listing)
        model = library.made(threads=2)
        calls(drawn, library, model, 2, 0, seed=bits)
        library.destroy(model)


def test_workers_that_sleep_are_woken() -> None:
    drawn = chain_and_sides()
    library = Library(drawn.listing)
    model, pause = library.made(threads=3), threading.Event()
    for number in range(5):
        pause.wait(0.02)  # far longer than a worker spins
        calls(drawn, library, model, 3, 200_000, seed=number)
    library.destroy(model)


def _busy() -> None:
    while True:
        pass


def test_a_loaded_machine_makes_it_slow_but_not_wrong() -> None:
    drawn = chain_and_sides()
    library = Library(drawn.listing)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_busy, daemon=True) for _ in range(2)]
    for other in others:
        other.start()
    try:
        model = library.made(threads=3)
        calls(drawn, library, model, 100, 500, seed=3)
        library.destroy(model)
    finally:
        for other in others:
            other.kill()
            other.join()


def test_models_share_one_pool_and_come_and_go() -> None:
    """Whoever finds the pool taken runs alone; a model that is destroyed has no worker left in it."""
    drawn = chain_and_sides()
    library = Library(drawn.listing)
    first = library.made(threads=4)
    pool = library.pool(first)
    failures: list[BaseException] = []

    def use(seed: int) -> None:
        try:
            chooser = random.Random(seed)
            for _ in range(8):
                model = library.made(threads=chooser.randrange(1, 6), pool=pool)
                calls(drawn, library, model, 12, 300, seed)
                library.destroy(model)
        except BaseException as error:  # it is looked at below, in the thread of the test
            failures.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    calls(drawn, library, first, 20, 300, seed=9)
    library.destroy(first)


def test_programs_of_two_libraries_share_a_pool() -> None:
    drawn, other = chain_and_sides(), Drawn([3, 5], [[], [0]])
    one, two = Library(drawn.listing), Library(other.listing)
    first = one.made(threads=3)
    second = two.made(threads=3, pool=one.pool(first))
    assert two.pool(second) == one.pool(first)
    for seed in range(5):
        calls(drawn, one, first, 10, 300, seed)
        calls(other, two, second, 10, 300, seed)
    two.destroy(second)
    one.destroy(first)


def test_one_thread_has_no_pool() -> None:
    library = Library(chain_and_sides().listing)
    model = library.made(threads=1)
    assert library.pool(model) is None
    library.destroy(model)


def test_after_a_fork_the_child_runs_alone_and_makes_models() -> None:
    drawn = chain_and_sides()
    library = Library(drawn.listing)
    model = library.made(threads=3)
    calls(drawn, library, model, 10, 100, seed=1)
    child = os.fork()
    if child == 0:  # whatever happens, it must not go on with the other tests
        code = 1
        try:
            library.after_fork(model)
            calls(drawn, library, model, 10, 100, seed=2)
            own = library.made(threads=3)
            calls(drawn, library, own, 10, 100, seed=3)
            library.destroy(own)
            library.destroy(model)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    calls(drawn, library, model, 10, 100, seed=4)
    library.destroy(model)


def test_a_model_in_use_answers_busy() -> None:
    drawn = Drawn([2, 1], [[], [0]])
    library = Library(drawn.listing)
    model = library.made(threads=2)
    idle, out, seed = aligned(3, np.int64), aligned(3, np.int64), aligned(1, np.int64)
    idle[:] = 1_000_000
    given, made = (ctypes.c_void_p * 2)(seed.ctypes.data, idle.ctypes.data), (ctypes.c_void_p * 1)(out.ctypes.data)
    codes: list[int] = []

    def run() -> None:
        codes.append(library.run_raw(model, given, made))

    while MODEL_BUSY not in codes:  # until two calls have met; the longer one takes, the sooner
        idle[:] *= 2
        thread = threading.Thread(target=run)
        thread.start()
        run()
        thread.join()
    assert set(codes) == {OK, MODEL_BUSY}
    library.destroy(model)


def test_a_negative_number_of_threads_is_refused() -> None:
    library, model = Library(chain_and_sides().listing), ctypes.c_void_p()
    assert library.create_with(ctypes.addressof(model), ctypes.byref(Options(threads=-1))) == BAD_ARGUMENT
    assert "a negative number of threads" in library.error(model).decode()
    library.destroy(model)


def test_no_options_are_refused() -> None:
    library, model = Library(chain_and_sides().listing), ctypes.c_void_p()
    assert library.create_with(ctypes.addressof(model), None) == BAD_ARGUMENT
    assert "no options" in library.error(model).decode()
    library.destroy(model)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((Wait(0), Claim(0), Claim(1)), "wait for run 0 before it is claimed"),
        ((Claim(0), Claim(0), Claim(1)), "run 0 is claimed twice"),
        ((Claim(1),), "1 runs are claimed by several workers; the listing has 2"),
        ((Claim(0), Claim(1), Claim(2)), "3 runs are claimed by several workers; the listing has 2"),
        ((Claim(0), Follow(1)), "run 1 follows a run that no worker has claimed whole"),
        ((Follow(0), Claim(1)), "run 0 follows a run that no worker has claimed whole"),
        ((Claim(0, whole=True), Wait(1), Follow(1)), "wait for run 1 before it is claimed"),
        ((Claim(0, whole=True), Follow(0), Claim(1)), "run 0 is claimed twice"),
    ],
)
def test_steps_that_do_not_fit_are_refused(steps: tuple[ListStep, ...], reason: str) -> None:
    listing = Drawn([2, 2], [[], [0]]).listing
    with pytest.raises(InvalidListing, match=reason):
        Listing("drawn", listing.inputs, listing.outputs, listing.kernels, listing.runs, 0, 0,
                Ticketed(steps, listing.runs, 0))  # fmt: skip


def test_other_runs_than_those_of_one_worker_are_refused() -> None:
    listing = Drawn([2, 2], [[], [0]]).listing
    steps = (Claim(0), Wait(0), Claim(1))
    with pytest.raises(InvalidListing, match="run 0 is another one for several workers"):
        Listing("drawn", listing.inputs, listing.outputs, listing.kernels, listing.runs, 0, 0,
                Ticketed(steps, listing.runs[::-1], 0))  # fmt: skip

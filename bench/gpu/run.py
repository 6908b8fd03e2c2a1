"""Programs that wait on a real GPU: `python -m bench.gpu.run`. Needs an NVIDIA driver; nothing else of CUDA.

- random programs that the verifier allows, pinned (launched cooperatively) and ticketed: none hangs, none reads what is
  not written yet, each run several times over the same counters;
- a program with one worker too many, which the verifier refuses, is refused by the cooperative launch too;
- what a launch, a signal, a wait and a barrier of the whole grid cost, written as a machine file;
- models of the zoo: equal to ONNX Runtime's, beside one launch for each region, and PyTorch where it is installed.

A kernel counts a wait that takes too long as a hang and goes on; the whole measurement runs under a time limit besides.
"""

from __future__ import annotations

import ctypes
import random
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer

from bench.gpu import peers, programs
from bench.gpu.driver import Gpu, WordArray
from graphopt.program.deploy.cuda.runtime import COOPERATIVE_TOO_LARGE, CudaError
from kernels.ptx.emit import ptx
from kernels.ptx.persistent import KERNELS, THREADS, module
from scheduler.device import Device
from scheduler.errors import UnsafeProgram
from scheduler.program import Counter, Item, Pinned, Program, Run, Ticketed, Wait
from scheduler.tasks import Kernel, Need, Region, TaskGraph
from scheduler.verify.program import verify

EPOCHS = 3  # times that each program runs
ROUNDS = 2_000  # of signals and of barriers, timed together
LAUNCHES = 2_000
WATCHDOG = 540  # seconds
CHUNK = 100  # random programs that a process draws and proves in one go
MODELS = (
    "mlp_tiny", "dscnn_kws", "gru_unrolled", "treelstm", "lstm_bi_op", "squeezenet1_1", "resnet18", "mobilenet_v2",
    "inception_v3", "nasnet_a_mobile", "randwire", "bert_small_rawdynamo", "vit_s16_legacy", "densenet121",
)  # fmt: skip


def run(
    count: Annotated[int, typer.Option(help="Random programs of each kind, each run three times.")] = 17_000,
    seed: Annotated[int, typer.Option(help="Of the programs.")] = 0,
    machine: Annotated[Path | None, typer.Option(help="Write the machine file here.")] = None,
) -> None:
    """Run random verified programs on the GPU and measure what its signals cost."""
    signal.alarm(WATCHDOG)
    gpu = Gpu()
    text = ptx(module(), f"sm_{gpu.capability[0]}{gpu.capability[1]}")
    loaded = gpu.load(text.encode() + b"\0")
    kernels = {name: gpu.function(loaded, name) for name in KERNELS}
    device = _device(gpu, min(gpu.resident(kernels[name], THREADS) for name in ("pinned", "ticketed")))
    resident = gpu.resident(kernels["pinned"], THREADS) * gpu.multiprocessors
    print(f"{gpu.name}: {gpu.multiprocessors} multiprocessors, {resident} blocks of the pinned kernel resident")
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:  # a process that has a GPU does not fork
        building = programs.started(pool, list(MODELS), gpu)
        clean = True
        for kind in ("pinned", "ticketed"):
            begun = time.monotonic()
            errors = hangs = 0
            for one in pool.map(partial(_proved, seed, kind, device, resident), range(count), chunksize=CHUNK):
                wrong, hung = _launched(gpu, kernels[kind], one)
                errors, hangs = errors + wrong, hangs + hung
            clean &= not errors + hangs
            said = f"{count:,} programs, {EPOCHS} runs each, {hangs} hangs, {errors} early reads"
            print(f"{kind}: {said}, {time.monotonic() - begun:.0f} s", flush=True)
        _too_many(gpu, kernels["pinned"], device, resident)
        costs = _costs(gpu, kernels, resident)
        for name, nanoseconds in costs.items():
            print(f"{name}: {nanoseconds:.0f} ns")
        if machine is not None:
            machine.write_text(_machine_file(gpu, costs))
            print(f"machine file written to {machine}")
        right = programs.compared(building, gpu)
    if find_spec("torch") is not None:
        peers.main()
    if not (right and clean):
        raise typer.Exit(1)


def _device(gpu: Gpu, blocks: int) -> Device:
    """The GPU as the scheduler sees it; `blocks` of our kernels on a multiprocessor, as the driver says."""
    return Device(
        gpu.name, gpu.multiprocessors, 2048, 64, blocks, 65536, 233472, 232448, 1024, 128,
        compute_capability=gpu.capability,
    )  # fmt: skip


def _drawn(draw: random.Random, workers: int, kind: str) -> tuple[TaskGraph, Program]:
    """Random regions of one to four tasks and their needs, and a program that waits for what it needs and little else.

    A region that is needed has one counter.
    """
    count = draw.randint(2, 20)
    blocks = [draw.randint(1, 4) for _ in range(count)]
    regions = tuple(Region(f"t{one}", (Kernel("k", many, (1.0,), THREADS),)) for one, many in enumerate(blocks))
    sources: dict[int, list[int]] = {
        one: sorted(draw.sample(range(one), min(one, draw.randint(0, 3)))) for one in range(count)
    }
    needs = tuple(Need(f"t{source}", f"t{one}") for one in range(count) for source in sources[one])
    graph = TaskGraph("random", regions, needs)
    counters = tuple(Counter(f"t{one}", 0, many) for one, many in enumerate(blocks))
    waits = {one: tuple(Wait(source, blocks[source]) for source in sources[one]) for one in range(count)}
    runs = [(one, Run(f"t{one}", block)) for one, many in enumerate(blocks) for block in range(many)]
    choice = {region.name: 0 for region in regions}
    if kind == "ticketed":
        items = tuple(Item(run, waits[one]) for one, run in runs)
        return graph, Program("random", "", choice, (Ticketed(items, workers, counters, THREADS),))
    lists: list[list[Run | Wait]] = [[] for _ in range(workers)]
    for one, run in runs:
        lists[draw.randrange(workers)] += [*waits[one], run]
    return graph, Program("random", "", choice, (Pinned(tuple(map(tuple, lists)), counters, THREADS),))


@dataclass(frozen=True, slots=True)
class Proved:
    """A random program that the verifier allows, in the words that the kernels of its kind read; or so many zeros."""

    workers: int
    items: int
    words: dict[str, list[int] | int]


def _proved(seed: int, kind: str, device: Device, resident: int, number: int) -> Proved:
    """A program by its number. Raises UnsafeProgram where the verifier refuses it."""
    draw = random.Random(f"{seed} {kind} {number}")
    workers = draw.choice((1, 2, 3, 8, 32, min(resident, 132), resident))
    graph, drawn = _drawn(draw, workers, kind)
    program = Program(drawn.graph, device.name, drawn.choice, drawn.launches)
    verify(graph, program, device)
    (launch,) = program.launches
    first: dict[str, int] = {}
    sources: list[list[int]] = []  # by task, as many as blocks
    raised: list[list[int]] = []
    tasks = {region.name: region.kernels[0].blocks for region in graph.regions}
    for region in graph.regions:
        first[region.name] = len(sources)
        needed = [need.source for need in graph.needs if need.target == region.name]
        some = [first[name] + block for name in needed for block in range(tasks[name])]
        sources += [some] * tasks[region.name]
        raised += [[len(first) - 1]] * tasks[region.name]
    (starts, needs), (rows, list_) = _rows(sources), _rows(raised)
    words: dict[str, list[int] | int] = {
        "marks": len(sources) * THREADS, "starts": starts, "needs": needs or [0], "errors": 2, "counters": len(tasks),
        "totals": list(tasks.values()), "rows": rows, "raised": list_,
    }  # fmt: skip
    items: list[int] = []
    if isinstance(launch, Pinned):
        lists = [0]
        for instructions in launch.workers:
            for one in instructions:
                items += [0, first[one.region] + one.block, 0] if isinstance(one, Run) else [1, one.counter, one.value]
            lists.append(len(items) // 3)
        return Proved(workers, len(items) // 3, words | {"code": items, "lists": lists})
    assert isinstance(launch, Ticketed), "programs are pinned or ticketed"
    waits: list[int] = []
    for item in launch.items:
        items += [first[item.run.region] + item.run.block, len(waits) // 2, len(waits) // 2 + len(item.waits)]
        waits += [word for wait in item.waits for word in (wait.counter, wait.value)]
    return Proved(workers, len(launch.items), words | {"items": items, "waits": waits or [0], "claimed": 1})


def _launched(gpu: Gpu, kernel: ctypes.c_void_p, program: Proved) -> tuple[int, int]:
    """Early reads and hangs of one program."""
    arrays = {name: gpu.array(given) for name, given in program.words.items()}
    checked = [arrays[name] for name in ("marks", "starts", "needs", "errors")]
    counted, pinned = [arrays[name] for name in ("counters", "totals", "rows", "raised")], "code" in arrays
    for epoch in range(1, EPOCHS + 1):
        words: list[WordArray | int] = [arrays["code"], arrays["lists"], *counted] if pinned else [arrays["items"]]
        if not pinned:
            base = (epoch - 1) * (program.items + program.workers)  # each worker draws one ticket that is not there
            words += [program.items, arrays["waits"], *counted, arrays["claimed"], base]
        gpu.start(kernel, program.workers, THREADS, [*words, *checked, epoch], cooperative=pinned)
    gpu.wait()
    wrong, hung = (int(one) for one in arrays["errors"].words()[:2])
    for array in arrays.values():
        array.free()
    return wrong, hung


def _rows(lists: list[list[int]]) -> tuple[list[int], list[int]]:
    starts, items = [0], []
    for one in lists:
        items += one
        starts.append(len(items))
    return starts, items


def _too_many(gpu: Gpu, kernel: ctypes.c_void_p, device: Device, resident: int) -> None:
    """One worker more than are resident: refused here, and refused by the driver."""
    region = Region("t", (Kernel("k", 1, (1.0,), THREADS),))
    graph = TaskGraph("one", (region,))
    program = Program("one", device.name, {"t": 0}, (Pinned(((Run("t", 0),), *((),) * resident), threads=THREADS),))
    try:
        verify(graph, program, device)
        print("one worker too many: NOT refused by the verifier")
    except UnsafeProgram as error:
        print(f"one worker too many: the verifier refuses ({error})")
    zero = gpu.array(resident + 2)
    arguments: list[WordArray | int] = [
        gpu.array(3), zero, zero, zero, zero, zero, gpu.array(THREADS), zero, zero, gpu.array(2), 1,
    ]  # fmt: skip
    try:
        gpu.start(kernel, resident + 1, THREADS, arguments, cooperative=True)
        gpu.wait()
        print("one worker too many: NOT refused by the cooperative launch")
    except CudaError as error:
        said = "refuses it too" if error.code == COOPERATIVE_TOO_LARGE else "fails otherwise"
        print(f"one worker too many: the cooperative launch {said} ({error})")


def _costs(gpu: Gpu, kernels: Mapping[str, ctypes.c_void_p], resident: int) -> dict[str, float]:
    """Nanoseconds of a launch, of a signal until it is seen, of a wait, of a barrier of one block a multiprocessor."""
    errors = gpu.array(2)
    words, counter = gpu.array(2), gpu.array(1)
    rows, each = gpu.array([0, 1, 2]), gpu.array([0, 1])
    blocks = min(gpu.multiprocessors, resident)

    def timed(action: Callable[[int], None], times: int) -> float:
        action(0)
        gpu.wait()
        begun = time.perf_counter()
        for turn in range(1, times + 1):
            action(turn)
        gpu.wait()
        return (time.perf_counter() - begun) / times * 1e9

    launch = timed(lambda turn: gpu.start(kernels["empty"], 1, THREADS, []), LAUNCHES)
    pair = timed(
        lambda turn: gpu.start(
            kernels["pingpong"], 2, THREADS, [words, rows, each, ROUNDS, errors, turn * ROUNDS], cooperative=True
        ),
        5,
    )
    look = timed(lambda turn: gpu.start(kernels["look"], 1, THREADS, [words, words, ROUNDS, errors]), 5)
    meet = timed(
        lambda turn: gpu.start(
            kernels["meet"], blocks, THREADS, [counter, ROUNDS, errors, turn * ROUNDS * blocks], cooperative=True
        ),
        5,
    )
    wait = (look - launch) / ROUNDS
    return {
        "launch_ns": launch, "signal_ns": (pair - launch) / (2 * ROUNDS) - wait, "wait_ns": wait,
        "grid_barrier_ns": (meet - launch) / ROUNDS,
    }  # fmt: skip


def _machine_file(gpu: Gpu, costs: dict[str, float]) -> str:
    lines = [
        f"# Measured on {gpu.name} by `python -m bench.gpu.run`; limits as NVIDIA gives them for 9.0.",
        f'name = "{gpu.name}"', "", "[target]", f'compute_capability = "{gpu.capability[0]}.{gpu.capability[1]}"', "",
        "[device]", f"multiprocessors = {gpu.multiprocessors}", "max_threads = 2048", "max_warps = 64",
        "max_blocks = 32", "registers = 65536", "shared_memory = 233472", "shared_memory_per_block = 232448",
        "shared_memory_reserved = 1024", "shared_memory_granularity = 128",
        f"launch_ns = {costs['launch_ns']:.0f}", f"signal_ns = {costs['signal_ns']:.0f}",
        f"wait_ns = {costs['wait_ns']:.0f}",
        f"# a barrier of one block a multiprocessor: {costs['grid_barrier_ns']:.0f} ns", "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(run)

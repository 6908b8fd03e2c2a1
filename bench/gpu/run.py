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
from importlib.util import find_spec
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
MODELS = (
    "mlp_tiny", "dscnn_kws", "gru_unrolled", "treelstm", "lstm_bi_op", "squeezenet1_1", "resnet18", "mobilenet_v2",
    "inception_v3", "nasnet_a_mobile", "randwire", "bert_small_rawdynamo",
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
    draw = random.Random(seed)
    for kind in ("pinned", "ticketed"):
        begun = time.monotonic()
        errors = hangs = 0
        for _ in range(count):
            wrong, hung = _try(gpu, kernels[kind], device, draw, kind, resident)
            errors, hangs = errors + wrong, hangs + hung
        seconds = time.monotonic() - begun
        print(f"{kind}: {count:,} programs, {EPOCHS} runs each, {hangs} hangs, {errors} early reads, {seconds:.0f} s")
    _too_many(gpu, kernels["pinned"], device, resident)
    costs = _costs(gpu, kernels, resident)
    for name, nanoseconds in costs.items():
        print(f"{name}: {nanoseconds:.0f} ns")
    if machine is not None:
        machine.write_text(_machine_file(gpu, costs))
        print(f"machine file written to {machine}")
    right = programs.main(list(MODELS))
    if find_spec("torch") is not None:
        peers.main()
    if not right:
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


def _try(
    gpu: Gpu, kernel: ctypes.c_void_p, device: Device, draw: random.Random, kind: str, resident: int
) -> tuple[int, int]:
    """Early reads and hangs of one program."""
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
    arrays = {
        "marks": gpu.array(len(sources) * THREADS), "starts": gpu.array(starts), "needs": gpu.array(needs or [0]),
        "errors": gpu.array(2), "counters": gpu.array(len(tasks)), "totals": gpu.array(list(tasks.values())),
        "rows": gpu.array(rows), "raised": gpu.array(list_),
    }  # fmt: skip
    if isinstance(launch, Pinned):
        code, lists = [], [0]
        for instructions in launch.workers:
            for one in instructions:
                code += [0, first[one.region] + one.block, 0] if isinstance(one, Run) else [1, one.counter, one.value]
            lists.append(len(code) // 3)
        arrays |= {"code": gpu.array(code), "lists": gpu.array(lists)}
        names = (
            "code", "lists", "counters", "totals", "rows", "raised", "marks", "starts", "needs", "errors",
        )  # fmt: skip
        for epoch in range(1, EPOCHS + 1):
            gpu.start(kernel, workers, THREADS, [*(arrays[name] for name in names), epoch], cooperative=True)
    elif isinstance(launch, Ticketed):
        waits: list[int] = []
        items: list[int] = []
        for item in launch.items:
            items += [first[item.run.region] + item.run.block, len(waits) // 2, len(waits) // 2 + len(item.waits)]
            waits += [word for wait in item.waits for word in (wait.counter, wait.value)]
        count = len(launch.items)
        arrays |= {"items": gpu.array(items), "waits": gpu.array(waits or [0]), "claimed": gpu.array(1)}
        for epoch in range(1, EPOCHS + 1):
            base = (epoch - 1) * (count + workers)  # each worker draws one ticket that is not there
            gpu.start(
                kernel, workers, THREADS,
                [arrays["items"], count, *(arrays[name] for name in ("waits", "counters", "totals", "rows", "raised",
                 "claimed")), base, *(arrays[name] for name in ("marks", "starts", "needs", "errors")), epoch],
            )  # fmt: skip
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

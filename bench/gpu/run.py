"""The scheduler's theory on a real GPU: `python -m bench.gpu.run`. Needs an NVIDIA driver; nothing else of CUDA.

- random programs that the verifier allows, pinned (launched cooperatively) and ticketed: none hangs, none reads what is
  not written yet, each run several times over the same counters;
- a program with one worker too many, which the verifier refuses, is refused by the cooperative launch too;
- what a launch, a signal and a barrier of the whole grid cost, written as a machine file.

A kernel counts a wait that takes too long as a hang and goes on; the whole measurement runs under a time limit besides.
"""

from __future__ import annotations

import ctypes
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from bench.gpu.driver import COOPERATIVE_TOO_LARGE, Array, CudaError, Gpu
from kernels.ptx.emit import ptx
from kernels.ptx.persistent import THREADS, module
from scheduler.device import Device
from scheduler.errors import UnsafeProgram
from scheduler.program import Item, Pinned, Program, Run, Ticketed, Wait
from scheduler.tasks import Kernel, Need, Region, TaskGraph
from scheduler.verify.program import verify

EPOCHS = 3  # times that each program runs
ROUNDS = 2_000  # of signals and of barriers, timed together
LAUNCHES = 2_000
WATCHDOG = 540  # seconds


def run(
    count: Annotated[int, typer.Option(help="Random programs of each kind.")] = 50_000,
    seed: Annotated[int, typer.Option(help="Of the programs.")] = 0,
    machine: Annotated[Path | None, typer.Option(help="Write the machine file here.")] = None,
) -> None:
    """Run random verified programs on the GPU and measure what its signals cost."""
    signal.alarm(WATCHDOG)
    gpu = Gpu()
    loaded = gpu.load(ptx(module(), f"sm_{gpu.capability[0]}{gpu.capability[1]}"))
    kernels = {name: gpu.function(loaded, name) for name in ("pinned", "ticketed", "empty", "pingpong", "meet")}
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


def _device(gpu: Gpu, blocks: int) -> Device:
    """The GPU as the scheduler sees it; `blocks` of our kernels on a multiprocessor, as the driver says."""
    return Device(
        gpu.name, gpu.multiprocessors, 2048, 64, blocks, 65536, 233472, 232448, 1024, 128,
        compute_capability=gpu.capability,
    )  # fmt: skip


def _drawn(draw: random.Random, workers: int, kind: str) -> tuple[TaskGraph, Program]:
    """A random graph of tasks of one block, and a program for it that waits for what it needs and little else."""
    count = draw.randint(2, 40)
    regions = tuple(Region(f"t{number}", (Kernel("k", 1, (1.0,), THREADS),)) for number in range(count))
    needs = []
    for number in range(1, count):
        needs += [(source, number) for source in draw.sample(range(number), min(number, draw.randint(0, 3)))]
    graph = TaskGraph("random", regions, tuple(Need(f"t{one}", f"t{other}") for one, other in needs))
    sources: dict[int, list[int]] = {
        number: [one for one, other in needs if other == number] for number in range(count)
    }
    choice = {region.name: 0 for region in regions}
    if kind == "ticketed":
        items = tuple(Item(Run(f"t{number}", 0), tuple(sorted(sources[number]))) for number in range(count))
        return graph, Program("random", "", choice, (Ticketed(items, workers, THREADS),))
    lists: list[list[Run | Wait]] = [[] for _ in range(workers)]
    place: dict[int, tuple[int, int]] = {}
    runs = [0] * workers
    for number in range(count):
        worker = draw.randrange(workers)
        for source in sources[number]:
            other, position = place[source]
            if other != worker:
                lists[worker].append(Wait(other, position))
        lists[worker].append(Run(f"t{number}", 0))
        runs[worker] += 1
        place[number] = (worker, runs[worker])
    return graph, Program("random", "", choice, (Pinned(tuple(map(tuple, lists)), THREADS),))


def _try(
    gpu: Gpu, kernel: ctypes.c_void_p, device: Device, draw: random.Random, kind: str, resident: int
) -> tuple[int, int]:
    """Early reads and hangs of one program."""
    workers = draw.choice((1, 2, 3, 8, 32, min(resident, 132), resident))
    graph, drawn = _drawn(draw, workers, kind)
    program = Program(drawn.graph, device.name, drawn.choice, drawn.launches)
    verify(graph, program, device)
    (launch,) = program.launches
    number = {region.name: position for position, region in enumerate(graph.regions)}
    sources: list[list[int]] = [[] for _ in graph.regions]
    for need in graph.needs:
        sources[number[need.target]].append(number[need.source])
    starts, needs = _rows(sources)
    arrays = {
        "marks": gpu.array(len(graph.regions) * THREADS), "starts": gpu.array(starts), "needs": gpu.array(needs or [0]),
        "errors": gpu.array(2),
    }  # fmt: skip
    if isinstance(launch, Pinned):
        code, lists, totals = [], [0], []
        for instructions in launch.workers:
            for one in instructions:
                code += [0, number[one.region], 0] if isinstance(one, Run) else [1, one.worker, one.runs]
            lists.append(len(code) // 3)
            totals.append(sum(isinstance(one, Run) for one in instructions))
        arrays |= {
            "code": gpu.array(code), "lists": gpu.array(lists), "counters": gpu.array(workers),
            "totals": gpu.array(totals),
        }  # fmt: skip
        names = ("code", "lists", "counters", "totals", "marks", "starts", "needs", "errors")
        for epoch in range(1, EPOCHS + 1):
            gpu.launch(kernel, workers, THREADS, [*(arrays[name] for name in names), epoch], cooperative=True)
    elif isinstance(launch, Ticketed):
        waits: list[int] = []
        items: list[int] = []
        for item in launch.items:
            items += [number[item.run.region], len(waits), len(waits) + len(item.waits)]
            waits += list(item.waits)
        count = len(launch.items)
        arrays |= {
            "items": gpu.array(items), "waits": gpu.array(waits or [0]), "flags": gpu.array(count),
            "claimed": gpu.array(1),
        }  # fmt: skip
        for epoch in range(1, EPOCHS + 1):
            base = (epoch - 1) * (count + workers)  # each worker draws one ticket that is not there
            gpu.launch(
                kernel, workers, THREADS,
                [arrays["items"], count, arrays["waits"], arrays["flags"], arrays["claimed"], base, arrays["marks"],
                 arrays["starts"], arrays["needs"], arrays["errors"], epoch],
            )  # fmt: skip
    gpu.wait()
    wrong, hung = (int(one) for one in arrays["errors"].read()[:2])
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
    program = Program("one", device.name, {"t": 0}, (Pinned(((Run("t", 0),), *((),) * resident), THREADS),))
    try:
        verify(graph, program, device)
        print("one worker too many: NOT refused by the verifier")
    except UnsafeProgram as error:
        print(f"one worker too many: the verifier refuses ({error})")
    zero = gpu.array(resident + 2)
    arguments: list[Array | int] = [gpu.array(3), zero, zero, zero, gpu.array(THREADS), zero, zero, gpu.array(2), 1]
    try:
        gpu.launch(kernel, resident + 1, THREADS, arguments, cooperative=True)
        gpu.wait()
        print("one worker too many: NOT refused by the cooperative launch")
    except CudaError as error:
        said = "refuses it too" if error.code == COOPERATIVE_TOO_LARGE else "fails otherwise"
        print(f"one worker too many: the cooperative launch {said} ({error})")


def _costs(gpu: Gpu, kernels: Mapping[str, ctypes.c_void_p], resident: int) -> dict[str, float]:
    """Nanoseconds of a launch, of a signal until its waiter goes on, and of a barrier of one block a multiprocessor."""
    errors = gpu.array(2)
    words, counter = gpu.array(2), gpu.array(1)
    blocks = min(gpu.multiprocessors, resident)

    def timed(action: Callable[[int], None], times: int) -> float:
        action(0)
        gpu.wait()
        begun = time.perf_counter()
        for turn in range(1, times + 1):
            action(turn)
        gpu.wait()
        return (time.perf_counter() - begun) / times * 1e9

    launch = timed(lambda turn: gpu.launch(kernels["empty"], 1, THREADS, []), LAUNCHES)
    pair = timed(
        lambda turn: gpu.launch(
            kernels["pingpong"], 2, THREADS, [words, ROUNDS, errors, turn * ROUNDS], cooperative=True
        ),
        5,
    )
    meet = timed(
        lambda turn: gpu.launch(
            kernels["meet"], blocks, THREADS, [counter, ROUNDS, errors, turn * ROUNDS * blocks], cooperative=True
        ),
        5,
    )
    return {
        "launch_ns": launch, "signal_ns": (pair - launch) / (2 * ROUNDS), "grid_barrier_ns": (meet - launch) / ROUNDS
    }  # fmt: skip


def _machine_file(gpu: Gpu, costs: dict[str, float]) -> str:
    lines = [
        f"# Measured on {gpu.name} by `python -m bench.gpu.run`; limits as NVIDIA gives them for 9.0.",
        f'name = "{gpu.name}"', "", "[target]", f'compute_capability = "{gpu.capability[0]}.{gpu.capability[1]}"', "",
        "[device]", f"multiprocessors = {gpu.multiprocessors}", "max_threads = 2048", "max_warps = 64",
        "max_blocks = 32", "registers = 65536", "shared_memory = 233472", "shared_memory_per_block = 232448",
        "shared_memory_reserved = 1024", "shared_memory_granularity = 128",
        f"launch_ns = {costs['launch_ns']:.0f}", f"signal_ns = {costs['signal_ns']:.0f}",
        f"# a barrier of one block a multiprocessor: {costs['grid_barrier_ns']:.0f} ns", "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(run)

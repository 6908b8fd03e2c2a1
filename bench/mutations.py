"""Damaged model files through every flow: nothing but a GraphoptError, no crash, no run without end.

Small models (onnx's node tests, light networks of the zoo, and `--data`'s own) are damaged by seed: bits, ranges of
bytes, and fields of the protobuf. Each case runs in a process of its own, whose processor time and memory are read at
its end. Results go to a file line by line, and a run that was broken off goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import resource
import secrets
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import onnx
import typer
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.backend.test.loader import load_model_tests

import models
from bench.bar import Bar, Sheet, console
from bench.survey import BUILD

ISSUE = 14
LOADS, FLOWS = 20_000, 2_000
QUICK_LOADS, QUICK_FLOWS = 1_000, 60
MOST_BYTES = 100_000  # of a model that is damaged
HEAVY = frozenset({"light_vgg19"})  # takes 2.7 GiB undamaged: it makes 575 MB of weights out of nothing
MOST_CPU = 60  # seconds of a case
MOST_MEMORY = 2 << 30  # bytes of a case
MOST_SPACE = 12 << 30  # bytes of address space, which spares the machine
WORK = 20_000  # blocks placed in the search for a schedule, which would take most of the time
EXTREMES = (0, 1, -1, 2, -2, 7, 255, 1 << 31, -(1 << 31), 1 << 40, (1 << 62), -(1 << 62), (1 << 63) - 1, -(1 << 63))


@dataclass(frozen=True, slots=True)
class Case:
    """What became of one damaged file. `said`: "ok", "refused", or what is wrong with us."""

    number: int
    model: str
    kind: str
    flows: bool
    said: str
    cpu: float  # seconds
    memory: int  # bytes


def damaged(seed: int, number: int, sources: list[tuple[str, bytes]]) -> tuple[str, str, bytes]:
    """The case's model, how it was damaged, and its bytes; the same for the same seed and number."""
    rng = random.Random(f"{seed}:{number}")
    name, data = sources[rng.randrange(len(sources))]
    kind = rng.choice(tuple(DAMAGES))
    return name, kind, DAMAGES[kind](data, rng)


def _bits(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _range(data: bytes, rng: random.Random) -> bytes:
    begin, length = rng.randrange(len(data)), rng.choice((1, 4, 16, 64))
    piece = data[begin : begin + length]
    middle = rng.choice((b"", piece * 2, bytes(len(piece)), b"\xff" * len(piece), rng.randbytes(len(piece))))
    return data[:begin] + middle + data[begin + length :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _fields(data: bytes, rng: random.Random) -> bytes:
    """One to three fields of the protobuf, with values that its type allows."""
    try:
        proto = onnx.ModelProto.FromString(data)
    except DecodeError:
        return data
    for _ in range(rng.choice((1, 1, 2, 3))):
        holders = list(_messages(proto))
        if holders:
            _spoil(*holders[rng.randrange(len(holders))], rng, proto)
    return bytes(proto.SerializeToString())


def _messages(message: object) -> Iterator[tuple[object, object]]:
    """Every field that is set, with the message that holds it."""
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        yield message, field
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _spoil(holder: object, field: object, rng: random.Random, proto: onnx.ModelProto) -> None:
    name, repeated = field.name, field.is_repeated  # type: ignore[attr-defined]
    value = getattr(holder, name)
    if field.type == field.TYPE_MESSAGE:  # type: ignore[attr-defined]
        if not repeated or rng.random() < 0.2:
            holder.ClearField(name)  # type: ignore[attr-defined]
        elif rng.random() < 0.5:
            del value[rng.randrange(len(value))]
        else:
            value.add().CopyFrom(value[rng.randrange(len(value))])
        return
    new = _other(field, value[rng.randrange(len(value))] if repeated else value, rng, proto)
    way = rng.random() if repeated else 0.0
    with contextlib.suppress(ValueError):  # a number that is no member of an enumeration
        if not repeated:
            setattr(holder, name, new)
        elif way < 0.6:
            value[rng.randrange(len(value))] = new
        elif way < 0.8:
            value.append(new)
        else:
            del value[rng.randrange(len(value))]


def _other(field: object, old: object, rng: random.Random, proto: onnx.ModelProto) -> object:
    if isinstance(old, str):
        names = [name for node in proto.graph.node for name in (*node.input, *node.output, node.op_type)]
        return rng.choice(["", "x", "\x1b[31m", "a/b", "../a", "nul\0l", old + old, *(names or [""])])
    if isinstance(old, bytes):
        return rng.choice([b"", old[:-1], old + b"\0", rng.randbytes(len(old)) or b"\xff", b"\xff\xfe"])
    if isinstance(old, float):
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e38, 1e-40])
    low, high = (0, (1 << 64) - 1) if "UINT" in _type_name(field) else (-(1 << 63), (1 << 63) - 1)
    if "32" in _type_name(field) or field.type == field.TYPE_ENUM:  # type: ignore[attr-defined]
        low, high = low >> 32, high >> 32
    known = [extreme for extreme in EXTREMES if low <= extreme <= high]
    return rng.choice([*known, max(low, min(high, int(old) + rng.choice((-1, 1))))])  # type: ignore[call-overload]


def _type_name(field: object) -> str:
    return {3: "INT64", 4: "UINT64", 5: "INT32", 13: "UINT32", 14: "ENUM32"}.get(field.type, "INT64")  # type: ignore[attr-defined]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bits": _bits, "range": _range, "cut": _cut, "fields": _fields, "fields again": _fields, "more fields": _fields,
}  # fmt: skip


def sources(data: Path | None) -> list[tuple[str, bytes]]:
    """Small models by name: onnx's node tests, the zoo's light files, and models of the folder `data`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests overflow on purpose
        tests = [(case.name, case.model.SerializeToString()) for case in load_model_tests(kind="node") if case.model]
    listed = (*models.names(), *models.onnx_light_names())
    zoo = [name for name in listed if name not in HEAVY and _weights(name) < MOST_BYTES]
    tests += [(name, models.load(name).SerializeToString()) for name in zoo]
    files = sorted(data.rglob("*.onnx")) if data else []
    tests += [(file.name, file.read_bytes()) for file in files if 0 < file.stat().st_size < MOST_BYTES]
    return [(name, model) for name, model in tests if len(model) < MOST_BYTES]


def _weights(name: str) -> int:
    """How many weights a model of the zoo has; its light file holds only their dims."""
    return sum(math.prod(tensor.dims) for tensor in onnx.load(models.path(name)).graph.initializer)


def examine(data: bytes, flows: bool) -> str:
    """Inside a process of its own: "ok", "refused", or the fault of ours that it shows."""
    import graphopt
    from graphopt.errors import GraphoptError

    said = "ok"
    try:
        model = graphopt.load(data)
    except GraphoptError:
        return "refused"
    except BaseException as error:
        return _fault("load", error)
    if not flows:
        return said
    with tempfile.TemporaryDirectory() as folder:
        asked: dict[str, Callable[[], object]] = {
            "optimize": lambda: graphopt.optimize(model, verify_seconds=20),
            "save": lambda: graphopt.optimize(model, verify=False).save(Path(folder) / "m.onnx"),
            "memory": lambda: graphopt.memory(model),
            "schedule": lambda: graphopt.schedule(model, device="cpu:2", work=WORK),
            "compile": lambda: graphopt.compile(model),
        }
        for name, run in asked.items():
            try:
                run()
            except GraphoptError:
                said = "refused"
            except BaseException as error:
                return _fault(name, error)
    return said


def _fault(flow: str, error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in place if "site-packages" not in frame.filename]
    return f"{flow}: {type(error).__name__} at {' '.join(ours[-2:])}: {str(error)[:120]}"


def run_case(number: int, model: str, kind: str, data: bytes, flows: bool) -> Case:
    """One case in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU, MOST_CPU + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_SPACE, MOST_SPACE))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.write(writing, examine(data, flows).encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status, usage = os.wait4(child, 0)
    cpu, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    if os.WIFSIGNALED(status):
        said = f"ended by signal {os.WTERMSIG(status)}"
    if cpu > MOST_CPU:
        said = f"took {cpu:.0f} s of processor time"
    elif memory > MOST_MEMORY and said in ("ok", "refused"):
        said = f"took {memory / 2**30:.1f} GiB"
    return Case(number, model, kind, flows, said, round(cpu, 3), memory)


def sweep(seed: int, loads: int, flows: int, data: Path | None, file: Path, show: Callable[[str], None]) -> list[Case]:
    """All cases; those that `file` holds already are not run again."""
    import graphopt

    graphopt.optimize(models.load("mlp_tiny"))  # what is imported late is there before the first fork
    graphopt.compile(models.load("mlp_tiny"))
    graphopt.schedule(models.load("mlp_tiny"), device="cpu:2")
    given = sources(data)
    done = [Case(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    known, left = {case.number for case in done}, flows - sum(case.flows for case in done)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as log:
        for number in range(loads):
            if number in known:
                continue
            name, kind, spoiled = damaged(seed, number, given)
            case = run_case(number, name, kind, spoiled, flows=False)
            if case.said == "ok" and left > 0:
                case, left = run_case(number, name, kind, spoiled, flows=True), left - 1
            if case.said not in ("ok", "refused"):
                show(f"case {number} ({name}, {kind}): {case.said}")
            done.append(case)
            log.write(json.dumps(asdict(case)) + "\n")
            log.flush()
    return done


def main(
    seed: Annotated[int | None, typer.Option(help="Of the damages; drawn and printed when not given.")] = None,
    loads: Annotated[int, typer.Option(help="Files to load.")] = LOADS,
    flows: Annotated[int, typer.Option(help="Of those that load, how many go through all flows.")] = FLOWS,
    data: Annotated[Path | None, typer.Option(envvar="GRAPHOPT_DATA", help="Folder of models from outside.")] = None,
    write: Annotated[int | None, typer.Option(help="Write this case's file to stdout and end.")] = None,
) -> None:
    """Damage models and send them through every flow."""
    chosen = secrets.randbelow(1 << 32) if seed is None else seed
    if write is not None:
        sys.stdout.buffer.write(damaged(chosen, write, sources(data))[2])
        return
    sheet = Sheet(console())
    sheet.bars(measure(sheet, data=data, seed=chosen, loads=loads, flows=flows))


def measure(
    sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = "", seed: int | None = None,
    loads: int = LOADS, flows: int = FLOWS,
) -> list[Bar]:  # fmt: skip
    """Damaged files: nothing but a GraphoptError, no crash, at most 60 s and 2 GB."""
    chosen = secrets.randbelow(1 << 32) if seed is None else seed
    loads, flows = (QUICK_LOADS, QUICK_FLOWS) if quick else (loads, flows)
    sheet.console.print(f"seed {chosen}")
    cases = sweep(chosen, loads, flows, data, BUILD / f"mutations-{chosen}.jsonl", sheet.console.print)
    faults = [case for case in cases if case.said not in ("ok", "refused")]
    counts = Counter((case.kind, "right" if case not in faults else "fault") for case in cases)
    sheet.table(
        f"damaged files, seed {chosen}", ("damage", "cases", "faults"),
        [(kind, counts[kind, "right"] + counts[kind, "fault"], counts[kind, "fault"]) for kind in DAMAGES],
    )  # fmt: skip
    through = sum(case.flows for case in cases)
    most, room = max(case.cpu for case in cases), max(case.memory for case in cases)
    return [
        Bar(ISSUE, 3, "damaged files: only our own errors, 60 s, 2 GB", f"{loads:,} loads, {flows:,} flows: 0 faults",
            f"{len(cases):,}, {through:,}: {len(faults)} faults; {most:.0f} s, {room / 2**30:.1f} GiB at most",
            not faults)
    ]  # fmt: skip


if __name__ == "__main__":
    typer.run(main)

"""Seeded faults in the PTX of our kernels, and whether the PTX machine notices: `python -m bench.gpu.mutants`.

A fault takes away or changes a signal, a wait, a fence, a barrier, an address or the guard of a tail, in one line. The
program then runs under all adversaries, ticketed and pinned, until the machine reports something or a result has other
bits. What nobody notices is silent: it is listed, to be judged by hand, as some faults change nothing (a barrier behind
another one, a guard that always holds).
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Literal

import numpy as np
import onnx_ir as ir
import typer
from onnx import ModelProto, TensorProto, helper, numpy_helper

from graphopt.program.deploy.cuda.bundle import TaskProgram
from graphopt.program.gpu import link_tasks
from graphopt.program.regions.lower import lower
from kernels.errors import KernelsError
from kernels.ptx.emit import ptx
from kernels.ptx.emulated import EmulatedTasks, RunWay
from kernels.ptx.machine.launching import ORDERS, Adversary
from kernels.ptx.machine.reports import Outcome
from kernels.ptx.program import program_module
from kernels.ptx.tables import TaskDescription
from kernels.target import cuda
from tests.kernels.ptx.tasks.running import MOST, Case, Task
from tests.kernels.ptx.tasks.samples import samples
from tests.program.gpu.test_recurrent import layer

FaultPlace = Literal["signal", "wait", "fence", "barrier", "address", "tail"]
Verdict = Literal["reported", "other result", "never executed", "silent"]
Attempt = tuple[str, Sequence[Outcome], list[bytes]]  # how it ran, what the machine says, results
PLACES: tuple[FaultPlace, ...] = ("signal", "wait", "fence", "barrier", "address", "tail")
VERDICTS: tuple[Verdict, ...] = ("reported", "other result", "never executed", "silent")
SEEDS = 3  # of an adversary, for programs whose blocks wait for one another
WAYS: tuple[tuple[RunWay, int], ...] = (("ticketed", 3), ("pinned", 2))  # and how many blocks


@dataclass(frozen=True, slots=True)
class Mutant:
    """One line of PTX changed."""

    place: FaultPlace
    number: int  # of the line, from 0
    old: str
    new: str  # "": the line is taken away
    others: tuple[tuple[int, str], ...] = ()  # more lines, of a loop that is written out, and what becomes of them

    def of(self, text: str) -> str:
        """The text with the fault."""
        lines = text.split("\n")
        for number, new in ((self.number, self.new), *self.others):
            lines[number] = new
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.place}, line {self.number + 1}: {self.old.strip()} -> {self.new.strip() or 'nothing'}"


class Subject:
    """A program whose text is mutated: how it runs, and what it gives without a fault."""

    def __init__(self, name: str, text: str, attempts: Callable[[str], Iterator[Attempt]]) -> None:
        self.name, self.text, self._attempts = name, text, attempts
        found = list(attempts(text))
        outcomes = [one for _, some, _ in found for one in some]
        assert not any(one.faults for one in outcomes), f"{name} has a fault of its own"
        self._expected = found[0][2]
        assert all(result == self._expected for _, _, result in found), f"{name} has other results in other orders"
        self._accessed = {line for one in outcomes for line in one.tally.by_line}

    def verdict(self, mutant: Mutant) -> tuple[Verdict, str]:
        """What notices the fault first, and its words."""
        try:
            for how, outcomes, result in self._attempts(mutant.of(self.text)):
                faults = [str(fault) for one in outcomes for fault in one.faults]
                if faults:
                    return "reported", f"{how}: {faults[0]}"
                if result != self._expected:
                    return "other result", how
        except KernelsError as error:  # a text that the machine does not know
            return "reported", str(error)
        touches = "[" in mutant.old
        return ("never executed" if touches and mutant.number + 1 not in self._accessed else "silent"), ""

    def drawn(self, count: int, seed: int) -> list[Mutant]:
        """As many faults, of each place about as many, and none twice."""
        draw, by_place = random.Random(seed), dict[FaultPlace, list[Mutant]]()
        for one in mutants(self.text):
            by_place.setdefault(one.place, []).append(one)
        for some in by_place.values():
            draw.shuffle(some)
        found: list[Mutant] = []
        while len(found) < count and any(by_place.values()):
            for some in by_place.values():
                if some and len(found) < count:
                    found.append(some.pop())
        return found


def subjects() -> list[Subject]:
    """Each task alone; steps of a recurrent layer, and branches that meet, in persistent blocks."""
    states = layer("GRU", (3, 3, 5, 10), "bidirectional", ("y", "y_h"), linear_before_reset=1)
    alone = [of_task(name, case) for name, case in samples().items()]
    return [*alone, of_model("steps", states), of_model("branches", branches())]


def of_task(name: str, case: Case) -> Subject:
    """A task that is launched alone."""

    def attempts(text: str) -> Iterator[Attempt]:
        task = Task(text, case)
        for order in ORDERS:
            outcome, found = task.run(Adversary(order, 1))
            assert outcome is not None, "it has blocks"
            yield order, (outcome,), [one.tobytes() for one in found.values()]

    target = cuda("sm_90")
    text = ptx(program_module([case.kernel], target), target.cpu)
    return Subject(name, _only(text, f"launch_{case.kernel.name}"), attempts)


def of_model(name: str, proto: ModelProto) -> Subject:
    """A model as a program of persistent blocks, ticketed and pinned."""
    target, draw = cuda("sm_90"), np.random.default_rng(0)
    linked = link_tasks(lower(ir.from_proto(proto), target), name)
    feeds = [draw.standard_normal(one.shape).astype(np.float32) for one in linked.listing.inputs]
    description = TaskDescription.of(linked.listing, target, dict(WAYS)["pinned"])

    def attempts(text: str) -> Iterator[Attempt]:
        program = EmulatedTasks(text, description, linked.weights, MOST)
        for seed, order, (way, blocks) in product(range(SEEDS), ORDERS, WAYS):
            ran = program.run(feeds, Adversary(order, seed), blocks=blocks, way=way)
            yield f"{way}, {order}, {seed}", ran.outcomes, [one.tobytes() for one in ran.outputs]

    return Subject(name, _only(TaskProgram.of(linked, target).text, "ticketed", "pinned"), attempts)


def branches() -> ModelProto:
    """Two convolutions of one image, their sum, its average, a product and a softmax."""
    draw = np.random.default_rng(0)
    kept = {"wa": (8, 4, 3, 3), "wb": (8, 4, 1, 1), "wc": (8, 10)}
    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], pads=[1, 1, 1, 1]), helper.make_node("Conv", ["x", "wb"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("GlobalAveragePool", ["sum"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]), helper.make_node("MatMul", ["flat", "wc"], ["c"]),
        helper.make_node("Softmax", ["c"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "branches", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 7, 9))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 10))],
        [numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), name) for name, shape in kept.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _only(text: str, *names: str) -> str:
    """The text with these kernels alone, and the functions that they call."""
    head, *parts = re.split(r"(?m)^(?=\.visible \.entry |\.func )", text)
    wanted = tuple(f".visible .entry {name}(" for name in names)
    kept = [one for one in parts if one.startswith(wanted)]
    for part in parts:
        name = re.match(r"\.func .*?(\w+)\(", part)
        if name and any(f"{name[1]}," in one for one in kept):
            kept.insert(0, part)
    return "".join((head, *kept))


# -- faults -----------------------------------------------------------------------------------------------------------


def mutants(text: str) -> list[Mutant]:
    """All faults that are known for a text."""
    lines, found = text.split("\n"), list[Mutant]()
    begin = 0
    for number, line in enumerate(lines):
        if line.startswith((".func", ".visible")):
            begin = number
        if line.startswith("\t"):
            found += [Mutant(place, number, line, new) for place, new in _changes(line, lines[begin:number])]
    looks = [number for number, line in enumerate(lines) if "ld.acquire" in line]
    return [_everywhere(one, lines, range(looks[0], looks[-1] + 5)) if looks else one for one in found]


def _everywhere(one: Mutant, lines: Sequence[str], looks: range) -> Mutant:
    """A fault of one of the looks of a wait, whose loop is written out, in all of them."""
    if one.number not in looks:
        return one
    alike = [at for at in looks if at != one.number and _kind(lines[at]) == _kind(one.old)]
    changed = [(at, new) for at in alike for _, new in _changes(lines[at], ()) if _kind(new) == _kind(one.new)]
    return replace(one, others=tuple(changed))


def _kind(line: str) -> str:
    """A line without the numbers of its registers."""
    return re.sub(r"%(r|p|rd)\d+", "%", line)


def _changes(line: str, before: Sequence[str]) -> Iterator[tuple[FaultPlace, str]]:
    """What may become of a line; `before` are the lines of its function before it."""
    if "bar.sync" in line or "bar.warp.sync" in line:
        yield "barrier", ""
    elif "fence." in line:
        yield "fence", ""
        yield "fence", line.replace(".gpu", ".cta")
    elif "red.release" in line:
        yield "signal", ""
        yield "signal", re.sub(r", %\w+;$", ", 2;", line)
        yield "fence", line.replace("red.release", "red.relaxed")
        yield "fence", line.replace(".gpu", ".cta")
    elif "atom.global.add" in line:
        yield "signal", re.sub(r"atom\.global\.add\.u32 \t(%\w+), .*", r"mov.b32 \t\1, 0;", line)
        yield "signal", line.replace(", 1;", ", 2;")
        yield "signal", line.replace("atom.global", "atom.relaxed.cta.global")
    elif "ld.acquire" in line:
        yield "wait", line.replace("ld.acquire.gpu", "ld.relaxed.gpu")
        yield "wait", line.replace("ld.acquire.gpu", "ld.volatile")
        yield "wait", line.replace("ld.acquire.gpu", "ld.acquire.cta")
    elif "call.uni" in line:
        yield "wait", ""
    elif re.search(r"\b(ld|st)\.(global|shared)\S* ", line):
        wide = 16 if ".v4" in line else 4
        for by in (wide, -wide, 128):
            yield "address", _moved(line, by)
    elif re.search(r"\bsetp\.(lt|le|gt|ge)\.[us]32 ", line):
        for old, new in (("lt", "le"), ("le", "lt"), ("gt", "ge"), ("ge", "gt")):
            if f"setp.{old}." in line:
                yield "tail", line.replace(f"setp.{old}.", f"setp.{new}.")
        immediate = re.search(r", (-?\d+);$", line)
        if immediate:
            for by in (1, -1):
                yield "tail", f"{line[: immediate.start()]}, {int(immediate[1]) + by};"
    else:
        guarded = re.match(r"\t@%p\d+ bra \t(\$\w+);", line)
        if guarded and f"{guarded[1]}:" not in before:  # without the branch back of a loop it may never end
            yield "tail", ""


def _moved(line: str, by: int) -> str:
    """The line with another offset of its address."""
    at = re.search(r"\[(%?\w+)(?:\+(-?\d+))?\]", line)
    assert at is not None, line
    return f"{line[: at.start()]}[{at[1]}+{int(at[2] or 0) + by}]{line[at.end() :]}"


def main(
    count: Annotated[int, typer.Option(help="How many faults.")] = 500,
    seed: Annotated[int, typer.Option(help="What they are drawn with.")] = 0,
) -> None:
    """Try the faults, and print what was noticed by place, and what was not."""
    found: dict[FaultPlace, Counter[Verdict]] = {place: Counter() for place in PLACES}
    begun, left = time.monotonic(), count
    programs = sorted(subjects(), key=lambda one: len(mutants(one.text)))  # those with few faults leave more to others
    for number, subject in enumerate(programs):
        some = subject.drawn(left // (len(programs) - number), seed)
        left -= len(some)
        for mutant in some:
            verdict, _ = subject.verdict(mutant)
            found[mutant.place][verdict] += 1
            if verdict == "silent":
                print(f"silent in {subject.name}: {mutant}", flush=True)
    for place, counts in found.items():
        print(f"{place}: " + ", ".join(f"{counts[one]} {one}" for one in VERDICTS))
    print(f"{sum(counts.total() for counts in found.values())} faults in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    typer.run(main)

"""One model all the way, and what its records say: optimize, memory, schedule, compile, run in C.

`follow` takes a model through all steps and keeps what each says in a `Trail`; a function of `FACTS` is one thing that
the records must agree on. A new step adds its record to `Trail`, and a function to `FACTS`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

import graphopt
from graphopt import MemoryReport, OptimizeResult, ScheduleReport
from graphopt.flows.asked import optimized, planned_target
from graphopt.flows.inspect import inspect_model
from graphopt.flows.records.models import InspectRecord
from graphopt.flows.source import read as read_source
from graphopt.flows.source import resize
from graphopt.model.census import census
from graphopt.model.dimensions import change_dims
from graphopt.model.load import load
from graphopt.program.deploy.compiled import Compiled
from graphopt.program.deploy.manifest import MANIFEST, Manifest, read_manifest
from graphopt.program.deploy.session import Bundle
from graphopt.program.make import make_listing
from graphopt.program.regions.region import Constant
from graphopt.program.tasks import region_names
from kernels.emit.types import CODES
from kernels.kernel import Transforming
from kernels.listing import ALIGNMENT, Argument
from tests import support

DEVICE = "cpu:2"
SCHEDULE_WORK = 100_000  # blocks placed: the figures need not be good, only the same everywhere
PADDING = 4096  # bytes: no tensor of a data file starts at a multiple of more
REFERENCE = 64  # bytes: a name and two numbers, by which a model refers to a tensor outside
ONNX_NAMES = {"f64": "double", "f32": "float", "f16": "float16"}  # others: "int8" of "i8", "uint8" of "u8"


@dataclass(frozen=True)
class Trail:
    """What every step said of one model."""

    source: Path
    dims: Mapping[str, int]  # sizes of the dynamic dims, which stay dynamic until memory, schedule and compile
    optimized: OptimizeResult
    file: Path  # the optimized model as saved, its external data beside it
    inspected: InspectRecord  # of that file
    memory: MemoryReport
    scheduled: ScheduleReport
    compiled: Compiled
    folder: Path  # the bundle
    manifest: Manifest
    library: Mapping[str, Any]  # what the C library says of itself
    feeds: Mapping[str, np.ndarray]
    expected: tuple[np.ndarray, ...]  # of ONNX Runtime without optimizations, from the model as it was given
    from_c: tuple[np.ndarray, ...]  # of the bundle's C example


def follow(source: Path, dims: Mapping[str, int], folder: Path) -> Trail:
    """Every step on the model in `source`; files are written to `folder`, which is empty."""
    optimized = graphopt.optimize(source)
    file = folder / "optimized.onnx"
    optimized.save(file)
    saved = load(file)
    inspected = inspect_model(saved, str(file), census(saved).bytes, dims)
    memory = graphopt.memory(file, dims=dims)
    scheduled = graphopt.schedule(file, device=DEVICE, dims=dims, work=SCHEDULE_WORK, measure=False)
    compiled = graphopt.compile(file, dims=dims, name="model")
    bundle = folder / "bundle"
    compiled.save(bundle)
    proto = onnx.load(source)
    feeds = support.feeds(proto, dims)
    return Trail(
        source, dims, optimized, file, inspected, memory, scheduled, compiled, bundle, read_manifest(bundle),
        Bundle(bundle).description, feeds, tuple(support.session(proto).run(None, feeds)),
        run_in_c(bundle, feeds, compiled.linked.listing.outputs, folder),
    )  # fmt: skip


def run_in_c(
    bundle: Path, feeds: Mapping[str, np.ndarray], outputs: tuple[Argument, ...], folder: Path
) -> tuple[np.ndarray, ...]:
    """The outputs of the bundle's own C example, compiled by the C compiler that is at hand."""
    found = shutil.which("cc")
    compiler = [sys.executable, "-m", "ziglang", "cc"] if found is None else [found]
    example = folder / "example"
    subprocess.run(
        [*compiler, "-O1", "-std=c11", "-Wall", "-Wextra", "-Werror", str(bundle / "example.c"), "-o", str(example),
         f"-I{bundle}", f"-L{bundle}", "-lmodel", "-lm", f"-Wl,-rpath,{bundle}"],
        check=True, capture_output=True,
    )  # fmt: skip
    given, made = [], []
    for number, array in enumerate(feeds.values()):
        given.append(folder / f"input{number}.raw")
        array.tofile(given[-1])
    for number in range(len(outputs)):
        made.append(folder / f"output{number}.raw")
    words = [str(one) for one in (example, bundle / "model.weights", *given, *made)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    return tuple(
        np.fromfile(one, output.dtype.numpy).reshape(output.shape) for one, output in zip(made, outputs, strict=True)
    )


def nodes_agree(trail: Trail) -> None:
    """The result, the file and the inspection count the same nodes; the memory plan has a step for each of them."""
    after, saved = trail.optimized.after, census(load(trail.file))
    assert after.nodes == saved.nodes == trail.inspected.nodes == sum(count for _, count in after.by_type)
    assert after.by_type == saved.by_type
    assert {line.op_type: line.nodes for line in trail.inspected.operators} == dict(after.by_type)
    types = [step.type for step in trail.memory.record.steps]
    assert sorted(types) == sorted(kind for kind, count in after.by_type for _ in range(count))


def bytes_agree(trail: Trail) -> None:
    """The bytes that the census and the inspection count are those on disk, but for the padding of a data file.

    Before a save the census cannot know the names and the offsets by which the file will refer to its data.
    """
    saved = census(load(trail.file)).bytes
    outside = [one for one in onnx.load(trail.file, load_external_data=False).graph.initializer if one.external_data]
    held = sum(onnx.numpy_helper.to_array(one, str(trail.file.parent)).nbytes for one in outside)
    beside = sum(one.stat().st_size for one in trail.file.parent.glob(f"{trail.file.name}.*"))
    assert 0 <= beside - held <= PADDING * len(outside)
    assert saved == trail.inspected.bytes == trail.file.stat().st_size + held
    assert abs(trail.optimized.after.bytes - saved) <= REFERENCE * len(outside)
    given = sum(one.stat().st_size for one in trail.source.parent.glob(f"{trail.source.name}*"))
    assert trail.optimized.before.bytes == given


def _in_file(constant: Constant) -> npt.NDArray[np.generic]:
    """A constant as a bundle's file has it."""
    packing = constant.packing
    if isinstance(packing, Transforming) and packing.is_stored_as_taps:
        return packing.taps(constant.array)
    return constant.packed()


def weights_agree(trail: Trail) -> None:
    """The file's weights are counted alike; so are the program's, which are others.

    A program holds its constants packed for kernels: padded to whole vectors, transformed (Winograd), rounded up to 64
    bytes, equal ones once. So its weights follow from its own constants, not from the file's. A bundle has what is
    transformed as it was before.
    """
    record, listing, program = trail.memory.record, trail.compiled.linked.listing, trail.manifest.program
    values = load(trail.file).graph.initializers.values()
    tensors = [value.const_value for value in values if value.const_value is not None]
    assert trail.optimized.after.parameters == trail.inspected.parameters == sum(one.size for one in tensors)
    assert record.weights == sum(one.nbytes for one in tensors)
    model, _ = read_source(trail.file, fix_defaults=True)
    resize(model, {}, trail.dims)
    lowered, _ = make_listing(optimized(model), planned_target("host", None, 0), "model", False, None)
    assert lowered.buffers == trail.compiled.lowered.buffers
    read = set(lowered.buffers)
    packed = [constant.packed() for one, constant in lowered.constants.items() if one in read]
    distinct = {array.tobytes(): array.nbytes for array in packed}
    assert listing.weights_bytes == sum(map(aligned, distinct.values()))
    assert listing.weights_bytes == trail.compiled.linked.weights.nbytes
    stored = (trail.folder / "model.weights").stat().st_size
    kept = [_in_file(constant) for one, constant in lowered.constants.items() if one in read]
    assert sum(map(aligned, {array.tobytes(): array.nbytes for array in kept}.values())) == stored
    assert stored == trail.manifest.files["model.weights"].bytes
    assert stored == program.weights_bytes == trail.library["weights_bytes"]
    assert f"{stored:,} of weights" in header_of(trail)


def regions_agree(trail: Trail) -> None:
    """A region is a run of the listing, a step of the manifest, a run of the library; a kernel is one of all four.

    The schedule's regions are those of the program that `compile` writes.
    """
    lowered, listing, manifest = trail.compiled.lowered, trail.compiled.linked.listing, trail.manifest
    kernels = {kernel.name: kernel for kernel in listing.kernels}
    assert [region.kernel.name for region in lowered.regions] == [run.kernel for run in listing.runs]
    several = () if listing.ticketed is None else listing.ticketed.runs
    assert len(kernels) == len(listing.kernels) == len({run.kernel for run in (*listing.runs, *several)})
    assert [(step.kernel, step.blocks, step.flops, step.candidate) for step in manifest.runs] == [
        (run.kernel, kernels[run.kernel].blocks, kernels[run.kernel].flops, kernels[run.kernel].candidate)
        for run in listing.runs
    ]
    assert len(manifest.runs) == manifest.program.runs == trail.library["runs"]
    record, tasks = trail.scheduled.record, trail.scheduled.tasks
    assert record.lowered
    assert record.regions == len(tasks.graph.regions) == len(lowered.regions)
    assert [region.name for region in tasks.graph.regions] == region_names(lowered)


def arena_agrees(trail: Trail) -> None:
    """One size of the arena in the plan, the listing, the manifest, the library and the header; and what lies in it.

    It is not that of the memory record, which counts the values of the file, outputs among them: kernels keep values
    between fused operators in registers, pad images, and write outputs where the caller wants them.
    """
    linked, manifest = trail.compiled.linked, trail.manifest
    size = linked.plan.arena_size
    assert size == linked.listing.arena_bytes == manifest.program.arena_bytes == trail.library["arena_bytes"]
    assert f"It needs {size:,} bytes for intermediate results" in header_of(trail)
    assert size == aligned(max((one.offset + one.bytes for one in manifest.buffers), default=0))
    for step in range(manifest.program.runs):
        live = [aligned(one.bytes) for one in manifest.buffers if one.begin <= step < one.end]
        assert sum(live) <= linked.plan.lower_bound <= size
    for number, one in enumerate(manifest.buffers):
        assert one.offset % ALIGNMENT == 0
        for other in manifest.buffers[:number]:
            apart = one.end <= other.begin or other.end <= one.begin
            assert apart or one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset
    kernels = {kernel.name: kernel for kernel in linked.listing.kernels}
    for step, run in enumerate(linked.listing.runs):
        for place, operand in zip(run.operands, kernels[run.kernel].operands, strict=True):
            here = any(
                one.begin <= step < one.end and one.offset <= place.offset
                and place.offset + operand.bytes <= one.offset + one.bytes
                for one in manifest.buffers
            )  # fmt: skip
            assert place.space != "arena" or here, "every operand in the arena lies in a buffer that lives now"
    scratch = max((kernel.scratch_bytes for kernel in linked.listing.kernels), default=0)
    assert scratch == linked.listing.scratch_bytes == manifest.program.scratch_bytes == trail.library["scratch_bytes"]
    assert f"{scratch:,} of scratch" in header_of(trail)


def workers_agree(trail: Trail) -> None:
    """Several workers claim each region once, with its kernel of smaller blocks if there is one, or whole with its own.

    Their arena has one size in the listing, the manifest, the library and the header; where one worker runs a program,
    there is none.
    """
    listing, manifest = trail.compiled.linked.listing, trail.manifest
    ticketed = listing.ticketed
    size = None if ticketed is None else ticketed.arena_bytes
    assert size == manifest.program.shared_arena_bytes == trail.library["shared_arena_bytes"]
    text = " ".join(header_of(trail).replace("\n *", "").split())
    assert ("One thread runs a model, the caller's." in text) == (ticketed is None)
    if ticketed is None:
        return
    assert f"A model then takes {size:,} bytes for intermediate results, and scratch for each thread." in text
    regions = trail.compiled.lowered.regions
    kernels = [
        region.kernel if number in ticketed.whole else region.kernel.shared or region.kernel
        for number, region in enumerate(regions)
    ]
    assert [run.kernel for run in ticketed.runs] == [kernel.name for kernel in kernels]
    assert sorted(run for run, _ in ticketed.waits) == list(range(len(regions)))
    for run, kernel in zip(ticketed.runs, kernels, strict=True):
        places = zip(kernel.operands, run.operands, strict=True)
        assert all(place.offset + operand.bytes <= size for operand, place in places if place.space == "arena")


def plans_agree(trail: Trail) -> None:
    """The memory record's own figures follow from its buffers; the schedule's from the plan that it took."""
    record = trail.memory.record
    tops = [line.offset + line.bytes for line in record.buffers]
    assert record.arena == aligned(max(tops)) and record.lower_bound <= record.arena
    assert record.peak == max(step.live for step in record.steps) == record.steps[record.peak_step].live
    assert record.fragmentation == record.arena - record.peak
    names = {line.name: line for line in record.buffers}
    for port in trail.compiled.linked.listing.outputs:
        assert names[port.name].bytes >= port.bytes and names[port.name].shape == port.shape
    assert record.inputs == sum(port.bytes for port in trail.compiled.linked.listing.inputs)
    ways = trail.scheduled.record.ways
    taken = [way for way in ways if way.taken]
    assert [(way.arena, way.makespan) for way in taken] == [
        (trail.scheduled.together.packing.arena_size, trail.scheduled.record.makespan)
    ]
    assert all(line.time <= trail.scheduled.record.makespan * (1 + 1e-9) for line in trail.scheduled.record.bounds)


def ports_agree(trail: Trail) -> None:
    """Inputs and outputs have the same names, types and dims in the models, the listing, the library and the header."""
    optimized, inspected = trail.optimized.signature, trail.inspected
    given = trail.optimized.original.graph
    listing, program, text = trail.compiled.linked.listing, trail.manifest.program, header_of(trail)
    for word, values, ports, lines, arguments, tensors in (
        ("input", given.inputs, optimized.inputs, inspected.inputs, listing.inputs, program.inputs),
        ("output", given.outputs, optimized.outputs, inspected.outputs, listing.outputs, program.outputs),
    ):
        names = [argument.name for argument in arguments]
        assert [value.name for value in values] == names, "no input of these models has a default"
        assert [port.name for port in ports] == [line.name for line in lines] == names
        assert [port.dims for port in ports] == [line.dims for line in lines]
        sizes = [tuple(trail.dims.get(dim, dim) for dim in port.dims or ()) for port in ports]
        assert sizes == [argument.shape for argument in arguments] == [tensor.shape for tensor in tensors]
        assert [line.type for line in lines] == [onnx_name(argument) for argument in arguments]
        assert [tensor.dtype for tensor in tensors] == [argument.dtype.value for argument in arguments]
        assert [tensor.code for tensor in tensors] == [CODES[argument.dtype] for argument in arguments]
        described = trail.library[f"{word}s"]
        assert [(one["name"], one["dtype"], one["code"], tuple(one["shape"])) for one in described] == [
            (tensor.name, tensor.dtype, tensor.code, tensor.shape) for tensor in tensors
        ]
        assert re.findall(rf'^ \* {word} \d+: "(.*)" (\w+) (\[.*\])$', text, re.MULTILINE) == [
            (argument.name, argument.dtype.value, str(list(argument.shape))) for argument in arguments
        ]


def files_agree(trail: Trail) -> None:
    """The bundle's folder holds the manifest and what it names, of the sizes and the content that it says."""
    files = trail.manifest.files
    assert {one.name for one in trail.folder.iterdir()} == {*files, MANIFEST}
    for name, known in files.items():
        content = (trail.folder / name).read_bytes()
        assert (known.bytes, known.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def numbers_agree(trail: Trail) -> None:
    """The C program gives what Python gives, to the bit, and what ONNX Runtime gives for the model as it was given.

    Any number of threads gives the same bits.
    The tolerance is that of float32 sums in another order, relative to the largest element of an output; of float16 the
    rounding to 11 bits.
    """
    from_python = trail.compiled.run(None, trail.feeds)
    for threads in (1, 3):
        outputs = Bundle(trail.folder, threads=threads).run(None, trail.feeds)
        assert [one.tobytes() for one in outputs] == [one.tobytes() for one in from_python]
    for expected, python, c in zip(trail.expected, from_python, trail.from_c, strict=True):
        assert expected.dtype == c.dtype and expected.shape == c.shape
        np.testing.assert_array_equal(c, python)
        largest = float(np.abs(expected.astype(np.float64)).max())
        share = 4e-3 if expected.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(c.astype(np.float64), expected.astype(np.float64), rtol=0, atol=share * largest)


FACTS: tuple[Callable[[Trail], None], ...] = (
    nodes_agree, bytes_agree, weights_agree, regions_agree, arena_agrees, workers_agree, plans_agree, ports_agree,
    files_agree, numbers_agree,
)  # fmt: skip


def aligned(size: int) -> int:
    """Bytes, rounded up to where the next buffer may start."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def header_of(trail: Trail) -> str:
    """The bundle's C header."""
    return (trail.folder / "model.h").read_text()


def fixed(trail: Trail) -> ir.Model:
    """The optimized model as it was saved, its dims numbers."""
    model = load(trail.file)
    change_dims(model, {}, dict(trail.dims))
    return model


def onnx_name(argument: Argument) -> str:
    """The type as an inspection names it."""
    name = argument.dtype.value
    return ONNX_NAMES.get(name) or name.replace("u", "uint").replace("i", "int") if name != "bool" else name

"""The nets catch what they are for: changes of many kinds are made on purpose, and each is noticed.

A net is the golden text of operators, that of a listing, or a fact of a trail. Each change is made at one place of the
product, as somebody might make it by mistake: the program that comes of it often still runs, and gives right numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir
import pytest

import models
from graphopt.flows import memory, optimize, result
from graphopt.flows.records.memory import MemoryRecord
from graphopt.memory.tensors import ModelMemory, model_memory
from graphopt.model.census import Census, census
from graphopt.passes import pipeline
from graphopt.program import lifetimes
from graphopt.program import weights as constants
from graphopt.program.deploy import bundle, compiled
from graphopt.program.deploy.manifest import Manifest, PlannedBuffer
from graphopt.program.regions import fusion
from graphopt.program.regions.images.image import Image
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from graphopt.program.regions.scope import Scope
from kernels.emit import program
from kernels.emit.description import Description
from kernels.emit.version import Origin
from kernels.kernel import Kernel
from kernels.listing import ALIGNMENT
from kernels.llvm.module import Module
from kernels.target import Target
from kernels.templates.convolution import choose, ways
from memplan.packing.solve import solve
from memplan.plan import Packing
from memplan.problem import MemoryProblem
from tests.golden import texts
from tests.golden.files import FOLDER
from tests.trail import FACTS, Trail, follow

TARGET = "x86-64-v3"
Patch = pytest.MonkeyPatch
Change = Callable[[Patch], None]


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """Candidates that were listed before a change, or with it, are listed anew."""
    ways.candidates.cache_clear()
    yield
    ways.candidates.cache_clear()


def skipping(name: str) -> Change:
    """A rule or a pass that no longer runs."""
    assert name in {*pipeline.names(), *(rule.name for rule in pipeline.rules())}
    stages = pipeline.stages

    def change(patch: Patch) -> None:
        patch.setattr(pipeline, "stages", lambda request: stages(replace(request, skip=request.skip | {name})))

    return change


def kernels_with(**changed: Callable[[Kernel], Any]) -> Change:
    """Kernels that say something else of themselves."""
    add = Scope.add

    def another(scope: Scope, kernel: Kernel, buffers: Any, nodes: Any) -> None:
        add(scope, replace(kernel, **{field: value(kernel) for field, value in changed.items()}), buffers, nodes)

    return lambda patch: patch.setattr(Scope, "add", another)


def nothing_fused(patch: Patch) -> None:
    patch.setattr(fusion, "_root", lambda node, roots, shape: node)


def another_candidate(patch: Patch) -> None:
    cycles = choose.cycles
    patch.setattr(choose, "cycles", lambda *given: -cycles(*given))


def the_given_order(patch: Patch) -> None:
    patch.setattr(texts, "in_best_order", lambda lowered: lowered)


def without_winograd(patch: Patch) -> None:
    def plain(model: ir.Model, target: Target) -> Lowered:
        return lower(model, target, exact=True)

    patch.setattr(texts, "lower", plain)


def offsets_shifted(patch: Patch) -> None:
    def shifted(problem: MemoryProblem, *, work: int) -> Packing:
        found = solve(problem, work=work)
        offsets = {name: offset + ALIGNMENT for name, offset in found.offsets.items()}
        return replace(found, offsets=offsets, arena_size=found.arena_size + ALIGNMENT)

    patch.setattr(lifetimes, "solve", shifted)


def nothing_reused(patch: Patch) -> None:
    def apart(problem: MemoryProblem, *, work: int) -> Packing:
        offsets, top = {}, 0
        for one in problem.buffers:
            offsets[one.name] = top
            top += problem.aligned(one.size)
        return replace(solve(problem, work=work), offsets=offsets, arena_size=top)

    patch.setattr(lifetimes, "solve", apart)


def weights_not_shared(patch: Patch) -> None:
    patch.setattr(constants, "_are_equal", lambda one, other: False)


def wider_alignment(patch: Patch) -> None:
    for module in (lifetimes, constants):
        patch.setattr(module, "ALIGNMENT", 128)


def images_copied(patch: Patch) -> None:
    patch.setattr(Image, "view", lambda image: None)


LISTINGS: dict[str, tuple[str, Change]] = {
    "no epilogue is fused": ("dscnn_kws", nothing_fused),
    "another candidate is chosen": ("dscnn_kws", another_candidate),
    "regions stay in the file's order": ("nasnet_a_mobile", the_given_order),
    "Winograd is left out": ("squeezenet1_1", without_winograd),
    "offsets are shifted": ("dscnn_kws", offsets_shifted),
    "no bytes are used twice": ("dscnn_kws", nothing_reused),
    "equal weights are held twice": ("gru_unrolled", weights_not_shared),
    "buffers are aligned to 128 bytes": ("dscnn_kws", wider_alignment),
    "images are copied instead of viewed": ("squeezenet1_1", images_copied),
    "blocks are halved": ("squeezenet1_1", kernels_with(blocks=lambda kernel: max(1, kernel.blocks // 2))),
    "flops are counted twice": ("dscnn_kws", kernels_with(flops=lambda kernel: 2 * kernel.flops)),
    "scratch grows": ("dscnn_kws", kernels_with(scratch_bytes=lambda kernel: kernel.scratch_bytes + 64)),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_the_golden_listing_catches(name: str, monkeypatch: Patch) -> None:
    model, change = LISTINGS[name]
    change(monkeypatch)
    golden = (FOLDER / f"{model}.{TARGET}.txt").read_text()
    assert texts.listing_text(texts.ready_to_lower(model), TARGET) != golden


OPERATORS: dict[str, tuple[str, Change]] = {
    "a rule no longer fires": ("dscnn_kws", skipping("reduce-then-reshape")),
    "constants are not folded": ("bert_small_rawdynamo", skipping("fold-constants")),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_golden_operators_catch(name: str, monkeypatch: Patch) -> None:
    model, change = OPERATORS[name]
    change(monkeypatch)
    assert texts.optimized_text(model) != (FOLDER / f"{model}.optimized.txt").read_text()


def larger(description: Description) -> Description:
    """The program as it is, its arena a little larger."""
    return msgspec.structs.replace(description, arena_bytes=description.arena_bytes + ALIGNMENT)


def in_the_manifest(patch: Patch) -> None:
    patch.setattr(bundle, "Manifest", lambda name, described, *rest: Manifest(name, larger(described), *rest))


def in_the_library(patch: Patch) -> None:
    write = program._write_texts

    def described(module: Module, name: str, all_of: Sequence[Description], origin: Origin) -> None:
        write(module, name, [larger(one) for one in all_of], origin)

    patch.setattr(program, "_write_texts", described)


def in_the_header(patch: Patch) -> None:
    header = bundle.header
    patch.setattr(bundle, "header", lambda described, levels=(): header(larger(described), levels))


def buffers_elsewhere(patch: Patch) -> None:
    patch.setattr(compiled, "PlannedBuffer", lambda name, offset, *rest: PlannedBuffer(name, offset + ALIGNMENT, *rest))


def a_step_lost(patch: Patch) -> None:
    steps_of = bundle.steps_of
    patch.setattr(bundle, "steps_of", lambda listing, nodes: steps_of(listing, nodes)[:-1])


def a_node_more(patch: Patch) -> None:
    def more(model: ir.Model, size: int | None = None) -> Census:
        found = census(model, size)
        return replace(found, nodes=found.nodes + 1)

    patch.setattr(result, "census", more)


def weights_twice(patch: Patch) -> None:
    def twice(model: ir.Model, **options: Any) -> ModelMemory:
        found = model_memory(model, **options)
        return replace(found, weights_bytes=2 * found.weights_bytes)

    patch.setattr(memory, "model_memory", twice)


def a_byte_more(patch: Patch) -> None:
    read = optimize._bytes_read
    patch.setattr(optimize, "_bytes_read", lambda source, original: read(source, original) + 1)


def a_higher_peak(patch: Patch) -> None:
    record = memory.memory_record

    def higher(*given: Any, **named: Any) -> MemoryRecord:
        found = record(*given, **named)
        return msgspec.structs.replace(found, peak=found.peak + ALIGNMENT)

    patch.setattr(memory, "memory_record", higher)


def another_type(patch: Patch) -> None:
    header = bundle.header

    def halved(described: Description, levels: Sequence[Description] = ()) -> str:
        inputs = tuple(msgspec.structs.replace(one, dtype="f16") for one in described.inputs)
        return header(msgspec.structs.replace(described, inputs=inputs), levels)

    patch.setattr(bundle, "header", halved)


def several_workers(patch: Patch) -> None:
    header = bundle.header
    patch.setattr(
        bundle, "header", lambda known, levels=(): header(msgspec.structs.replace(known, shared_arena_bytes=64), levels)
    )


def another_checksum(patch: Patch) -> None:
    file_of = bundle.file_of
    patch.setattr(
        bundle, "file_of", lambda content: file_of(b"" if b"* Runs program" in bytes(content[:200]) else content)
    )


def a_word_of_another_sign(patch: Patch) -> None:
    example = bundle.example
    wanted, other = 'printf("%s:", outputs[i].name);', "((char *)outputs[i].data)[3] ^= (char)0x80;"

    def changed(described: Description) -> str:
        assert wanted in example(described)
        return example(described).replace(wanted, f"{wanted} {other}")

    patch.setattr(bundle, "example", changed)


TRAILS: dict[str, tuple[str, Change]] = {
    "the manifest has another arena": ("arena_agrees", in_the_manifest),
    "the library describes another arena": ("arena_agrees", in_the_library),
    "the header names another arena": ("arena_agrees", in_the_header),
    "the manifest has buffers elsewhere": ("arena_agrees", buffers_elsewhere),
    "the manifest lacks a step": ("regions_agree", a_step_lost),
    "the census counts a node more": ("nodes_agree", a_node_more),
    "the memory record counts weights twice": ("weights_agree", weights_twice),
    "the record of the input counts a byte more": ("bytes_agree", a_byte_more),
    "the memory record has a higher peak": ("plans_agree", a_higher_peak),
    "the header has another type": ("ports_agree", another_type),
    "the header says that several run it": ("workers_agree", several_workers),
    "the manifest has another checksum": ("files_agree", another_checksum),
    "the C example turns a sign": ("numbers_agree", a_word_of_another_sign),
}


@pytest.mark.parametrize("name", TRAILS)
def test_the_records_of_a_trail_catch(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    """The fact that is named says no, and it alone."""
    fact, change = TRAILS[name]
    (tmp_path / "given").mkdir()
    models.write("mlp_tiny", tmp_path / "given" / "model.onnx")
    change(monkeypatch)
    trail = follow(tmp_path / "given" / "model.onnx", {}, tmp_path)
    assert [one.__name__ for one in FACTS if not holds(one, trail)] == [fact]


def test_every_fact_is_shown_to_say_no() -> None:
    assert {fact for fact, _ in TRAILS.values()} == {fact.__name__ for fact in FACTS}


def holds(fact: Callable[[Trail], None], trail: Trail) -> bool:
    """Whether the records agree."""
    try:
        fact(trail)
    except AssertionError:
        return False
    return True

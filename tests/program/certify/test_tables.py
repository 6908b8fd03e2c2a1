"""What is read out of a bundle: its tables, its pointers, its calls; and what does not fit together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import graphopt
from graphopt.errors import BundleError
from graphopt.program.certify.calls import _references_x86, check_no_allocation, reached
from graphopt.program.certify.elf import SharedLibrary
from graphopt.program.certify.proof import prove
from graphopt.program.certify.statement import Refused, Room
from graphopt.program.certify.tables import read_statement
from graphopt.program.deploy.bundle import write_bundle
from graphopt.program.deploy.manifest import Manifest, PlannedBuffer, Use, Uses, read_manifest
from kernels.emit.rows import WORDS
from kernels.listing import Claim, Follow, Ticketed, Wait
from kernels.llvm.compile import compile_object
from kernels.llvm.link import link_shared
from kernels.target import Target, aarch64, host
from tests import support
from tests.kernels.listings import Written, perceptron
from tests.program.certify.changes import put, words_of

HIDDEN = 2 * 32 * 4  # bytes: two rows of 32 floats


def write(folder: Path, ticketed: Ticketed | None = None) -> Written:
    """A perceptron of two layers, for one worker and for several."""
    made = perceptron(host(), rows=2)
    if ticketed is not None:
        made = replace(made, listing=replace(made.listing, ticketed=ticketed))
    numbers = {kernel.name: number for number, kernel in enumerate(made.listing.kernels)}
    uses = [
        Uses(numbers[run.kernel], tuple(Use(place.space, place.argument, place.offset) for place in run.operands))
        for run in made.listing.runs
    ]
    buffers = [PlannedBuffer("hidden", 0, HIDDEN, 0, 2)]
    write_bundle(folder, made.listing, made.weights, host(), buffers=buffers, uses=uses)
    return made


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written") / "mlp"
    write(folder)
    return folder


def library_of(bundle: Path) -> bytes:
    return (bundle / "libmlp.so").read_bytes()


def test_the_tables_say_what_the_listing_says(tmp_path: Path) -> None:
    listing = write(tmp_path / "b").listing
    statement = read_statement(read_manifest(tmp_path / "b"), SharedLibrary(library_of(tmp_path / "b")))
    several = statement.several
    assert several is not None and listing.ticketed is not None
    assert [(run, waits) for run, waits in zip(several.order, several.waits, strict=False)] == list(
        listing.ticketed.waits
    )
    assert several.waits[-1] == (1,) and several.arena_bytes == HIDDEN
    kernels = {kernel.name: kernel for kernel in listing.kernels}
    for runs in (statement.alone, several.runs):
        for touches, run in zip(runs, listing.runs, strict=True):
            for touch, place, operand in zip(touches, run.operands, kernels[run.kernel].operands, strict=True):
                assert touch.room == Room(place.space, place.argument)
                assert (touch.begin, touch.end - touch.begin) == (place.offset, operand.bytes)
                assert touch.written == (operand.role == "output")
    proved = prove(statement)
    assert (proved.runs, proved.waits, proved.places, proved.pairs) == (2, 2, 16, 1)


def test_a_chain_is_read_and_its_order_needs_no_wait(tmp_path: Path) -> None:
    made = perceptron(host(), rows=2)
    assert made.listing.ticketed is not None
    chain = replace(made.listing.ticketed, steps=(Claim(0, whole=True), Follow(1), Wait(1)))
    write(tmp_path / "b", chain)
    manifest, library = read_manifest(tmp_path / "b"), SharedLibrary(library_of(tmp_path / "b"))
    several = read_statement(manifest, library).several
    assert several is not None and several.follows == {1} and several.waits == ((), (), (1,))
    assert prove(read_statement(manifest, library)).waits == 1


def test_the_manifest_reads_back_with_its_kernels_and_uses(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    assert [code.name for code in manifest.kernels] == ["dense0", "dense1"]
    assert manifest.uses[1].operands[0] == Use("arena", 0, 0) and manifest.uses[0].several == 0
    earlier = msgspec.json.decode((bundle / "manifest.json").read_bytes())
    del earlier["kernels"], earlier["uses"]
    decoded = msgspec.json.decode(msgspec.json.encode(earlier), type=Manifest)
    assert decoded == msgspec.structs.replace(manifest, kernels=(), uses=())
    with pytest.raises(Refused, match="the manifest does not say on what its runs work: the bundle was written by an"):
        read_statement(decoded, SharedLibrary(library_of(bundle)))


def with_uses(manifest: Manifest, uses: tuple[Uses, ...]) -> Manifest:
    return msgspec.structs.replace(manifest, uses=uses)


def first_kernel(manifest: Manifest, **changes: object) -> Manifest:
    kernels = (msgspec.structs.replace(manifest.kernels[0], **changes), *manifest.kernels[1:])
    return msgspec.structs.replace(manifest, kernels=kernels)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda one: with_uses(one, one.uses[:1]), "the manifest has 2 runs and 1 lists of their operands."),
        (lambda one: first_kernel(one, name="dense1"), "two kernels of the manifest have the same name."),
        (lambda one: first_kernel(one, name="other"), "a run calls kernel 'dense0', which the manifest does not list."),
        (lambda one: first_kernel(one, operands=()), "kernel 'dense0' has 0 operands; a run of it has 4."),
        (lambda one: first_kernel(one, blocks=77), "run 0 has {blocks} blocks and its kernel 'dense0' 77."),
        (
            lambda one: with_uses(one, (msgspec.structs.replace(one.uses[0], several=None), one.uses[1])),
            "the manifest names no kernel with which several workers do run 0.",
        ),
        (
            lambda one: with_uses(one, (msgspec.structs.replace(one.uses[0], several=9), one.uses[1])),
            "the manifest names no kernel with which several workers do run 0.",
        ),
        (
            lambda one: with_uses(one, (msgspec.structs.replace(one.uses[0], several=1), one.uses[1])),
            "row 0 runs kernel 0 in {blocks} blocks on the operands of run 0; that is kernel 'dense1', in {others}.",
        ),
        (
            lambda one: msgspec.structs.replace(one, kernels=(*one.kernels, one.kernels[0].__class__("x", 1, ()))),
            "table 'alone.kernels' has 2 kernels, the manifest 3.",
        ),
        (
            lambda one: with_uses(
                one, (one.uses[0], Uses(1, (Use("input", 0, 0), *one.uses[1].operands[1:])))
            ),
            "table 'places.input0' has 8 bytes; 4 numbers say what lies in input 0.",
        ),
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_fit_is_refused(
    bundle: Path, change: Callable[[Manifest], Manifest], sentence: str
) -> None:
    manifest = read_manifest(bundle)
    blocks, others = (step.blocks for step in manifest.runs)
    with pytest.raises(Refused) as caught:
        read_statement(change(manifest), SharedLibrary(library_of(bundle)))
    assert str(caught.value) == sentence.format(blocks=blocks, others=others)


@pytest.mark.parametrize(
    ("row", "word", "change", "sentence"),
    [
        (0, 2, 1, "row 0 names operand {word}, with which no run begins."),
        (0, 3, 1, "the rows' waits do not follow one another in table 'shared.waits'."),
        (1, 3, 9, "the rows' waits do not follow one another in table 'shared.waits'."),
        (-1, 3, 9, "the rows' waits do not follow one another in table 'shared.waits'."),
        (-1, 3, -1, "table 'shared.waits' holds 2 waits, of which the rows use 1."),
    ],
)
def test_rows_that_do_not_fit_are_refused(bundle: Path, row: int, word: int, change: int, sentence: str) -> None:
    manifest, content = read_manifest(bundle), bytearray(library_of(bundle))
    words = words_of(content, "shared.rows")
    place = (WORDS * row + word) % len(words)
    put(content, "shared.rows", place, words[place] + change)
    with pytest.raises(Refused) as caught:
        read_statement(manifest, SharedLibrary(bytes(content)))
    assert str(caught.value) == sentence.format(word=words[place] + change)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("shared.rows", "table 'shared.rows' has 28 bytes; the manifest's runs need 32 or twice that."),
        ("shared.waits", "the rows' waits do not follow one another in table 'shared.waits'."),
        ("places.arena", "table 'places.arena' has 12 bytes; 4 numbers say what lies in the arena."),
    ],
)
def test_a_table_that_lacks_a_word_is_refused(bundle: Path, name: str, sentence: str) -> None:
    library = SharedLibrary(library_of(bundle))
    symbol = library.symbols[name]
    library.symbols = {**library.symbols, name: replace(symbol, bytes=symbol.bytes - 4)}
    with pytest.raises(Refused) as caught:
        read_statement(read_manifest(bundle), library)
    assert str(caught.value) == sentence


def test_what_is_no_library_is_refused(bundle: Path) -> None:
    content = library_of(bundle)
    for damaged in (b"", b"MZ" + content[2:], content[:3000], content[:64]):
        with pytest.raises(BundleError, match="the library is no ELF file of 64 bits that can be read"):
            SharedLibrary(damaged)
    library = SharedLibrary(content)
    with pytest.raises(BundleError, match=r"has no table 'places.other': it was stripped, or compiled by an earlier"):
        library.read("places.other")
    with pytest.raises(BundleError, match="holds no bytes for its table 'own_pool'"):
        library.read("own_pool")  # zeroed memory, which has none


CALLS = """
declare ptr @malloc(i64)
declare i32 @getpid()
@table = internal constant [1 x ptr] [ptr @quiet]
define internal ptr @taking(i64 %size) noinline {
  %p = call ptr @malloc(i64 %size)
  ret ptr %p
}
define i32 @quiet() noinline {
  %n = call i32 @getpid()
  ret i32 %n
}
define ptr @calling(i64 %size) {
  %p = call ptr @taking(i64 %size)
  store i8 0, ptr %p
  ret ptr %p
}
define ptr @naming() {
  ret ptr @taking_far
}
define ptr @taking_far(i64 %size) noinline {
  %p = tail call ptr @malloc(i64 %size)
  ret ptr %p
}
"""


@pytest.mark.parametrize("target", [host(), aarch64()], ids=["here", "arm"])
def test_calls_are_followed_to_the_c_library(target: Target) -> None:
    text = f'target triple = "{target.triple}"\n{CALLS}'
    library = SharedLibrary(link_shared([compile_object(text, target)], target, exported=("calling", "naming")))
    assert reached(library, ["calling"]) == {"calling", "taking", "malloc"}
    assert reached(library, ["naming"]) == {"naming", "taking_far", "malloc"}
    assert reached(library, ["quiet"]) == {"quiet", "getpid"}
    assert library.pointers("table") == (library.symbols["quiet"].start,)
    assert check_no_allocation(library, ["quiet"]) == {"getpid"}
    with pytest.raises(Refused, match="a run may call 'malloc', which takes or gives memory"):
        check_no_allocation(library, ["quiet", "naming"])
    with pytest.raises(Refused, match="the library has no function 'table'"):
        reached(library, ["table"])


# The bytes of an instruction before the distance that it has to what it names.
NAMING = {
    "call": "e8", "jmp": "e9", "jo": "0f80", "je": "0f84", "jg": "0f8f", "lea": "488d05", "mov of memory": "488b0d",
    "call of memory": "ff15", "jmp of memory": "ff25", "lea to a new register": "4c8d3d",
}  # fmt: skip
SILENT = {
    "movups of memory": "0f1005",
    "add of memory": "480305",
    "cmov": "0f4405",
    "a number": "48c7c0",
    "je near": "74",
}


@pytest.mark.parametrize("distance", [0, 1 << 20, -(1 << 20), (1 << 31) - 1, -(1 << 31)])
def test_instructions_that_name_an_address(distance: int) -> None:
    """Wherever they stand, the last bytes of the code included; others name none, whatever their numbers are."""
    told = distance.to_bytes(4, "little", signed=True)
    for code in NAMING.values():
        for before, after in ((b"", b""), (b"\x90\x90", b"\xc3"), (b"\xc3", b"\x90" * 5)):
            whole = before + bytes.fromhex(code) + told
            place = 4096 + len(whole) - 4
            assert (place, place + 4 + distance) in _references_x86(4096, whole + after)
    for code in SILENT.values():
        whole = b"\x90" + bytes.fromhex(code) + told
        places = {place for place, _ in _references_x86(4096, whole + b"\xc3")}
        assert 4096 + len(whole) - 4 not in places


def test_the_way_in_takes_memory_and_a_run_takes_none(bundle: Path) -> None:
    library = SharedLibrary(library_of(bundle))
    assert {"calloc", "mmap", "mprotect", "pthread_create"} <= reached(library, ["mlp_create_with"])
    assert {"munmap", "free"} <= reached(library, ["mlp_destroy"])
    names = check_no_allocation(
        library, ["mlp_run", "mlp_run_raw", "mlp.walk", "mlp.pool_worker", "mlp.dense0", "mlp.dense1"]
    )
    assert names == {
        "clock_gettime", "getpid", "pthread_setaffinity_np", "sched_getcpu", "sched_yield", "snprintf", "strcmp",
        "syscall",
    }  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
def test_a_part_of_joined_images_is_read_before_the_other_is_written(tmp_path: Path, threads: int) -> None:
    text = """g (float[1,3,16,16] x) => (float[1,16,16,16] y) {
      a = Conv <pads = [1,1,1,1]> (x, w0) f = Reshape (a, flat) n = InstanceNormalization (f, scale, shift)
      p = Reshape (n, wide) u = Conv <pads = [1,1,1,1]> (p, w1) j = Concat <axis = 1> (u, a)
      y = Conv <pads = [1,1,1,1]> (j, w2)
    }"""
    draw = np.random.default_rng(3)
    weights = {
        f"w{number}": (draw.standard_normal(shape) / 9).astype(np.float32)
        for number, shape in enumerate([(32, 3, 3, 3), (32, 32, 3, 3), (16, 64, 3, 3)])
    }
    numbers = {"scale": np.ones(4, np.float32), "shift": np.zeros(4, np.float32)}
    shapes = {"flat": np.array([1, 4, -1]), "wide": np.array([1, 32, 16, 16])}
    program = graphopt.compile(support.model(text, **weights, **numbers, **shapes), threads=threads)
    program.save(tmp_path / "joined")
    library = SharedLibrary(next((tmp_path / "joined").glob("*.so")).read_bytes())
    assert prove(read_statement(read_manifest(tmp_path / "joined"), library)).runs == len(program.lowered.regions)

"""The statement of a bundle: what its manifest says that the runs mean, and what the library's tables make them do.

`places.<space>` holds pairs of numbers: where in the model's record the address of an operand is stored, and how many
bytes it lies from the start of its space; `places.shared.arena` the second of them alone, for the arena of several
workers, operand by operand as `places.arena` has them. Workers go through `shared.rows` and `shared.waits`, and call
what `alone.kernels` points to. The addresses of the operands lie in the record run by run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from graphopt.program.certify.elf import SharedLibrary
from graphopt.program.certify.statement import Refused, Room, Runs, Several, Statement, Touch
from graphopt.program.deploy.manifest import Code, Manifest, Operand, Use
from kernels.emit.description import Tensor
from kernels.emit.rows import WORDS, flags_of

_SIZES = {"f64": 8, "i64": 8, "u64": 8, "f32": 4, "i32": 4, "u32": 4, "f16": 2, "bf16": 2, "i16": 2, "u16": 2}
Places = Mapping[int, tuple[Room, int]]  # by operand, counted through all runs: its space and its offset there


def read_statement(manifest: Manifest, library: SharedLibrary) -> Statement:
    """Raises Refused where the manifest and the tables do not fit together."""
    program = manifest.program
    if not manifest.uses or not manifest.kernels:
        raise Refused(
            "the manifest does not say on what its runs work: the bundle was written by an earlier version; compile "
            "the model again."
        )
    if len(manifest.uses) != len(manifest.runs) or program.runs != len(manifest.runs):
        raise Refused(f"the manifest has {len(manifest.runs)} runs and {len(manifest.uses)} lists of their operands.")
    codes = {code.name: code for code in manifest.kernels}
    if len(codes) != len(manifest.kernels):
        raise Refused("two kernels of the manifest have the same name.")
    alone = [
        _code(codes, step.kernel, len(use.operands)) for step, use in zip(manifest.runs, manifest.uses, strict=True)
    ]
    for number, (step, code) in enumerate(zip(manifest.runs, alone, strict=True)):
        if step.blocks != code.blocks:
            raise Refused(f"run {number} has {step.blocks} blocks and its kernel '{code.name}' {code.blocks}.")
    operands = [code.operands for code in alone]
    uses = [use.operands for use in manifest.uses]
    spaces = _spaces(uses)
    places, base = _places(library, spaces, shared=False)
    inputs, outputs = (tuple(map(_bytes, tensors)) for tensors in (program.inputs, program.outputs))
    outputs += tuple(8 * len(one.shape) for one in program.outputs if one.counted)  # their dims
    sizes = {Room("arena"): program.arena_bytes, Room("weights"): program.weights_bytes + program.made_bytes}
    if program.sizes:
        sizes[Room("sizes")] = 8 * (len(program.sizes) + program.derived)
    for kind, given in (("input", inputs), ("output", outputs)):
        sizes |= {Room(kind, number): size for number, size in enumerate(given)}
    several = None
    if program.shared_arena_bytes is not None:
        shared, other = _places(library, spaces, shared=True)
        if other != base:
            raise Refused(f"the operands of several workers start at byte {other} of the record, not at {base}.")
        several = _several(manifest, library, shared, program.shared_arena_bytes)
    return Statement(
        tuple(code.name for code in alone),
        tuple(tuple(map(_meant, run, used)) for run, used in zip(operands, uses, strict=True)),
        _touches(operands, places), sizes, outputs,
        tuple((one.offset, one.bytes, one.begin, one.end) for one in manifest.buffers), several,
        frozenset(number for number, one in enumerate(program.outputs) if one.cache >= 0),
    )  # fmt: skip


def _code(codes: Mapping[str, Code], name: str, operands: int) -> Code:
    if name not in codes:
        raise Refused(f"a run calls kernel '{name}', which the manifest does not list.")
    if len(codes[name].operands) != operands or not operands:
        raise Refused(f"kernel '{name}' has {len(codes[name].operands)} operands; a run of it has {operands}.")
    return codes[name]


def _bytes(tensor: Tensor) -> int:
    return _SIZES.get(tensor.dtype, 1) * int(np.prod(tensor.shape, dtype=object))


def _meant(operand: Operand, use: Use) -> Touch:
    kind = "buffer" if use.space == "arena" else use.space
    return Touch(Room(kind, use.number), use.offset, use.offset + operand.bytes, written=operand.role == "output")


def _touches(operands: Sequence[Sequence[Operand]], places: Places) -> Runs:
    counted = itertools.count()
    found = []
    for run in operands:
        touches = []
        for operand in run:
            room, offset = places[next(counted)]
            touches.append(Touch(room, offset, offset + operand.bytes, written=operand.role == "output"))
        found.append(tuple(touches))
    return tuple(found)


def _spaces(uses: Sequence[Sequence[Use]]) -> dict[Room, int]:
    """How many operands lie in each space, which is as many rows as its table has."""
    counts: dict[Room, int] = {}
    for use in itertools.chain.from_iterable(uses):
        room = Room(use.space, use.number if use.space in ("input", "output") else 0)
        counts[room] = counts.get(room, 0) + 1
    return counts


def _places(library: SharedLibrary, spaces: Mapping[Room, int], *, shared: bool) -> tuple[Places, int]:
    """Where all operands lie, by the tables of one worker or of several, and where their addresses begin."""
    rows: dict[int, tuple[Room, int]] = {}
    for room, count in spaces.items():
        name = f"places.{room.kind}{room.number if room.kind in ('input', 'output') else ''}"
        words = _numbers(library, name, 2 * count, room)
        offsets = words[1::2]
        if shared and room.kind == "arena":
            offsets = _numbers(library, "places.shared.arena", count, room)
        for entry, offset in zip(words[::2], offsets, strict=True):
            if entry in rows:
                raise Refused(f"two operands have their address at byte {entry:,} of the record: table '{name}'.")
            rows[entry] = (room, offset)
    base = min(rows)
    for number, entry in enumerate(sorted(rows)):
        if entry != base + 8 * number:
            raise Refused(
                f"no table gives the address of operand {number}, at byte {base + 8 * number:,} of the record."
            )
    return {(entry - base) // 8: place for entry, place in rows.items()}, base


def _numbers(library: SharedLibrary, name: str, count: int, room: Room) -> list[int]:
    """A table's words, of 32 or 64 bits."""
    content = library.read(name)
    if len(content) not in (4 * count, 8 * count):
        raise Refused(f"table '{name}' has {len(content):,} bytes; {count:,} numbers say what lies in {room}.")
    found: list[int] = np.frombuffer(content, "<u4" if len(content) == 4 * count else "<u8").tolist()
    return found


def _several(manifest: Manifest, library: SharedLibrary, places: Places, arena: int) -> Several:
    count = len(manifest.runs)
    table, content, least = library.read("shared.rows"), library.read("shared.waits"), 2 * WORDS * (count + 2)
    if len(table) not in (least, 2 * least):
        raise Refused(
            f"table 'shared.rows' has {len(table):,} bytes; the manifest's runs need {least:,} or twice that."
        )
    size = 2 * len(table) // least
    words = np.frombuffer(table, f"<u{size}").reshape(-1, WORDS).tolist()
    waits = np.frombuffer(content[: len(content) // size * size], f"<u{size}").tolist()
    whole, follow = flags_of(8 * size)
    starts = itertools.accumulate((len(use.operands) for use in manifest.uses), initial=0)
    run_at = {start: run for run, start in zip(range(count), starts, strict=False)}
    kernels = library.pointers("alone.kernels")
    _check_kernels(manifest, library, kernels)
    chosen = [_several_code(manifest, run) for run in range(count)]
    order: list[int] = []
    follows = _follows([row[0] for row in words[:count]], whole, follow)
    for row, (flagged, blocks, start, _) in enumerate(words[:count]):
        kernel = flagged & (whole - 1)
        if start not in run_at:
            raise Refused(f"row {row} names operand {start:,}, with which no run begins.")
        run = run_at[start]
        wanted = chosen[run]
        if kernel >= len(kernels) or manifest.kernels[kernel].name != wanted.name or blocks != wanted.blocks:
            raise Refused(
                f"row {row} runs kernel {kernel} in {blocks} blocks on the operands of run {run}; that is kernel "
                f"'{wanted.name}', in {wanted.blocks}."
            )
        order.append(run)
    bounds = [row[3] for row in words]
    if bounds[0] != 0 or any(low > high for low, high in itertools.pairwise(bounds)) or bounds[-1] > len(waits):
        raise Refused("the rows' waits do not follow one another in table 'shared.waits'.")
    if len(waits) != max(1, bounds[-1]):
        raise Refused(f"table 'shared.waits' holds {len(waits)} waits, of which the rows use {bounds[-1]}.")
    return Several(
        tuple(order),
        tuple(tuple(waits[low:high]) for low, high in itertools.pairwise(bounds)),
        _touches([code.operands for code in chosen], places), arena, follows,
    )  # fmt: skip


def _follows(flagged: Sequence[int], whole: int, follow: int) -> frozenset[int]:
    """The rows that follow; nobody would run one whose row before is not one worker's whole."""
    found = frozenset(row for row, word in enumerate(flagged) if word & follow)
    for row in sorted(found):
        if not row or not flagged[row - 1] & whole or not flagged[row] & whole:
            raise Refused(f"row {row} follows a row that no worker has whole: nobody runs it.")
    return found


def _several_code(manifest: Manifest, run: int) -> Code:
    """The kernel that several workers run in the place of a run's own."""
    number, operands = manifest.uses[run].several, len(manifest.uses[run].operands)
    if number is None or not 0 <= number < len(manifest.kernels):
        raise Refused(f"the manifest names no kernel with which several workers do run {run}.")
    code = manifest.kernels[number]
    if len(code.operands) != operands:
        raise Refused(f"kernel '{code.name}' has {len(code.operands)} operands; run {run} has {operands}.")
    return code


def _check_kernels(manifest: Manifest, library: SharedLibrary, kernels: Sequence[int | None]) -> None:
    """Every pointer leads to the function that has the kernel's name."""
    if len(kernels) != len(manifest.kernels):
        raise Refused(f"table 'alone.kernels' has {len(kernels)} kernels, the manifest {len(manifest.kernels)}.")
    for number, (code, address) in enumerate(zip(manifest.kernels, kernels, strict=True)):
        symbol = library.symbols.get(f"{manifest.name}.{code.name}")
        if symbol is None or symbol.start != address:
            raise Refused(f"place {number} of table 'alone.kernels' does not lead to kernel '{code.name}'.")

"""What `graphopt compile` did, as `--json` prints it."""

from __future__ import annotations

import msgspec


class CompileRecord(msgspec.Struct, frozen=True):
    """A bundle that was written, or custom operators: sums over their programs."""

    input: str
    output: str
    target: str  # the processor that the code is for, by LLVM's name
    level: str  # what the processor must have: x86-64-v4 (AVX-512)
    regions: int
    kernels: int  # different ones
    weights_bytes: int
    arena_bytes: int
    arena_bound_bytes: int  # the live peak: no arena is smaller
    scratch_bytes: int
    seconds: float  # without the comparison
    max_abs: float  # from ONNX Runtime without optimizations, on seeded feeds and those that were given
    max_rel: float
    not_compared: str | None = None  # why the program was not compared; both differences are 0 then
    feeds: int = 0  # that were compared
    rounding: float = 0.0  # the largest difference beyond the kernels' allowance, in multiples of the model's rounding
    remade: str | None = None  # what was wrong with a first program, in whose place an exact one was made
    tolerance: dict[str, float] = {}  # by type, what counts as equal whatever the model's own rounding is
    model_bytes: int = 0  # of the tensors in the model, beside the program's weights
    shared_arena_bytes: int | None = None  # of a model that several threads run; None: one thread runs it
    machine: str | None = (
        None  # the processor whose record kernels and the plan for several were chosen with, or a core; None: usual
    )
    fallback: tuple[str, ...] = ()  # what ONNX Runtime computes itself beside custom operators
    made_bytes: int = 0  # of weights that a model makes of those of the file when it is created
    levels: tuple[str, ...] = ()  # of processors that there is code for, the first that fits is run
    ram_bytes: int | None = None  # that a process takes, where a budget was given, with `ram_workers`
    ram_workers: int = 0
    fetched_bytes: int = 0  # of weights that each run reads
    spilled_bytes: int = 0  # of intermediate results that each run writes to a temporary file and reads back
    points: int = 1  # sizes that there is a program for; regions, kernels and arena are those of the first
    precision: str = "float32"  # of products and convolutions
    errors: dict[str, float] = {}  # of each output in a narrower precision, in shares of its largest element
    rounded_regions: int = 0
    roundable_regions: int = 0  # with those that stay in float32, as the tolerance wants it
    gpu_workers: int = 0  # blocks of a pinned program of a GPU; 0: a program of a processor
    flash_bytes: int = 0  # of a library for a microcontroller: code and weights; 0: of another kind
    memory_bytes: int = 0  # that it works in: inputs, arena, scratch and outputs
    outside: tuple[str, ...] = ()  # functions that it calls and has not
    not_rounded: str | None = None  # why all is in float32 where another precision was asked for, as a clause
    plain_rel: float = 0.0  # the largest relative difference on feeds on which all is within `tolerance`
    rounded_feeds: int = 0  # on so many others the model's own rounding decides
    schema: str = "graphopt.compile/1"

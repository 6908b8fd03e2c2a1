"""What `graphopt certify` proved and tried, as `--json` prints it."""

from __future__ import annotations

import msgspec


class Certificate(msgspec.Struct, frozen=True):
    """A bundle that was certified; there is none of one that was refused."""

    bundle: str
    producer: str
    files: int  # whose content is as the manifest says
    runs: int
    places: int  # of operands, in the tables of one worker and of several
    values: int  # pieces of operands whose writer is the one that the program means
    several: bool  # whether there is a table for several workers
    waits: int
    pairs: int  # of runs that share bytes, one of them writing, all ordered by waits
    arena_bytes: int
    shared_arena_bytes: int | None
    outside: tuple[str, ...]  # functions of the C library that a run may call; none of them takes or gives memory
    seed: int
    feeds: int
    threads: tuple[int, ...]  # that gave the same bits on every feed, in two calls each
    max_rel: float | None  # from the model, relative to each element and the largest beside it; None: not compared
    compared_feeds: int  # with the model
    tolerance: dict[str, float]
    schema: str = "graphopt.certificate/1"

"""What `graphopt check` found in a bundle, as `--json` prints it."""

from __future__ import annotations

import msgspec


class BundleChecked(msgspec.Struct, frozen=True):
    """A bundle whose files are as its manifest says; there is none of one that was refused."""

    bundle: str
    producer: str
    abi: int
    model: str  # SHA-256 of the model that it was made of; empty where that is not known
    files: int  # whose content is as the manifest says
    weights_bytes: int  # of the file
    made_bytes: int  # of weights that are made when a model is created
    levels: tuple[str, ...]  # of processors that it has code for, as LLVM names them, in the order of choice
    points: int  # sizes that it is made for
    here: str | None  # the level that this machine runs; None: none
    why_not: str | None  # why the library was not run, as a clause; None where it was
    schema: str = "graphopt.checked/1"

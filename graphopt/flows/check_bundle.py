"""`check`: whether a bundle is whole, what it has code for, and whether it was made of a model."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from graphopt.errors import BundleError
from graphopt.flows.records.checked import BundleChecked
from graphopt.flows.source import digest_of, read
from graphopt.model.load import Source
from graphopt.program.deploy.checking import checked_files
from graphopt.program.deploy.manifest import Manifest, read_manifest
from graphopt.program.deploy.session import Bundle
from kernels.emit.description import Description
from kernels.target import host


def check_bundle(bundle: str | os.PathLike[str], *, model: Source | None = None) -> BundleChecked:
    """Check a bundle: its manifest, the content of its files, its ABI, and what the library says of itself.

    Where this machine can run the library, a program is created, and its weights' checksum compared with the one that
    the library knows; creation itself looks at nothing but their size. With `model` the digest of that model is
    compared with the bundle's. `certify` proves besides what the runs do. Raises BundleError.
    """
    folder = Path(bundle)
    manifest = read_manifest(folder)
    contents = checked_files(folder, manifest)
    held = len(contents[f"{manifest.name}.weights"])
    if held != manifest.program.weights_bytes:
        raise BundleError(f"the weights have {held:,} bytes; the program reads {manifest.program.weights_bytes:,}.")
    if model is not None:
        original, _ = read(model)
        digest = digest_of(model, original)
        if digest != manifest.model:
            raise BundleError(
                f"the bundle was made of another model: its digest is {manifest.model or 'not known'}, that of the "
                f"model {digest or 'not known'}."
            )
    here, why_not = _run(folder, manifest)
    levels = manifest.levels or (manifest.program,)
    return BundleChecked(
        str(folder), manifest.producer, manifest.program.abi, manifest.model, len(contents), held,
        max(one.made_bytes for one in levels), tuple(one.cpu for one in levels), max(1, len(manifest.program.points)),
        here, why_not,
    )  # fmt: skip


def _run(folder: Path, manifest: Manifest) -> tuple[str | None, str | None]:
    """The level that is run here; or why none is, as a clause."""
    wanted, machine = manifest.program.triple.partition("-")[0], host().architecture.name
    if wanted != machine:
        return None, f"it is compiled for {wanted}, and this machine is {machine}"
    try:
        program = Bundle(folder, threads=1)
    except BundleError as error:
        if "this processor lacks" in str(error):
            return None, str(error).rstrip(".")
        raise
    try:
        described = msgspec.convert(program.description, Description)
        if described not in (manifest.levels or (manifest.program,)):
            raise BundleError("the library describes another program than the manifest.")
        program.check()
    finally:
        program.close()
    return described.cpu, None

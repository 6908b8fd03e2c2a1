"""The files of a program for a microcontroller, and the folder that has them.

lib<name>.a    code and weights, both of them for flash, and the memory that the program works in
<name>.h       its functions and sizes        main.c    a program that uses it        manifest.json    the other files
"""

from __future__ import annotations

from graphopt.errors import BundleError
from graphopt.program.deploy.manifest import Footprint
from graphopt.program.deploy.micro.texts import example, header
from graphopt.program.deploy.runtime import Array
from kernels.emit.checksum import checksum
from kernels.emit.description import Description, describe
from kernels.emit.firmware import firmware, flash_bytes
from kernels.emit.layout import layout_of
from kernels.emit.program import stored_weights
from kernels.errors import KernelsError
from kernels.listing import Listing
from kernels.llvm.archive import archive
from kernels.llvm.elf import outside
from kernels.target import Target


def micro_files(
    listing: Listing, weights: bytes | Array, target: Target
) -> tuple[Description, Footprint, dict[str, bytes | memoryview]]:
    """What a program says of itself, what it takes, and its files but for the manifest; raises BundleError."""
    try:
        stored = stored_weights(listing, weights)
        made = firmware(listing, target, stored)
        objects = made.objects()
    except KernelsError as error:
        raise BundleError(str(error)) from error
    program = describe(listing, target, layout_of(listing, target), (), checksum(stored))
    footprint = Footprint(flash_bytes(objects), made.laid.total, outside(objects))
    return (
        program,
        footprint,
        {
            f"lib{listing.name}.a": archive({f"{number}.o": code for number, code in enumerate(objects)}),
            f"{listing.name}.h": header(program, footprint).encode(),
            "main.c": example(program).encode(),
        },
    )

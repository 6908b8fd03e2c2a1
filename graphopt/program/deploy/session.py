"""Programs from Python inside graphopt: of a listing in this process, without any file, or of a bundle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from graphopt.errors import BundleError
from graphopt.program.deploy import runtime
from graphopt.program.deploy.runtime import Array, Interface
from kernels.emit.program import emit, stored_weights
from kernels.errors import KernelsError
from kernels.listing import Listing
from kernels.llvm.load import Loaded, ObjectCache
from kernels.run import placed
from kernels.target import Target, host, why_not_here


class Program(runtime.Program):
    """A listing compiled and loaded. `run(None, feeds)` and `program(**feeds)`; raises BundleError."""

    refusal = BundleError

    def __init__(
        self,
        listing: Listing,
        weights: bytes | Array,
        target: Target | None = None,
        cache: ObjectCache | None = None,
        *,
        threads: int = 0,
        in_place: bool = False,
        pool: runtime.Program | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        """`in_place`: the weights stay where they are, and as they are, for as long as the program; else it has a copy.

        `threads` and `pool` as for `load`; `meanwhile` is called while the program is compiled.
        """
        try:
            target = target or host()
            if (reason := why_not_here(target)) is not None:
                raise BundleError(f"{reason}; write the program as a bundle, and run it where it is meant to run.")
            stored = stored_weights(listing, weights)
            if not in_place:
                stored = placed(stored)
            self.cache = cache or ObjectCache(None)  # what the program's library is linked from, if it is saved
            emitted = emit(listing, target, stored)
            emitted.begin(self.cache)
            meanwhile()
            loaded = Loaded(emitted.objects(self.cache), target)
        except KernelsError as error:
            raise BundleError(str(error)) from error
        interface = Interface(lambda name: loaded.address(f"{listing.name}_{name}"))
        self._parts = (interface, stored, loaded, listing)
        super().__init__(interface, stored, threads=threads, pool=pool, keep=loaded)

    @property
    def weights(self) -> Array:
        """The bytes of all weights, where the program reads them."""
        return self._parts[1]

    def address(self, kernel: str) -> int:
        """Where the code of a kernel of the listing starts."""
        return self._parts[2].address(self._parts[3].symbol(kernel))

    def another(self, *, threads: int = 0, pool: runtime.Program | None = None) -> runtime.Program:
        """The same code and weights with memory of its own, to be called beside this one; options as for `load`."""
        interface, stored, loaded, _ = self._parts
        return runtime.Program(interface, stored, threads=threads, pool=pool, keep=loaded)


class Bundle(runtime.Program):
    """A bundle from disk; raises BundleError for one that is damaged or does not fit this machine."""

    refusal = BundleError

    def __init__(self, folder: str | os.PathLike[str], *, read: bool = False, threads: int = 0) -> None:
        super().__init__(*runtime.opened(Path(folder), BundleError), read=read, threads=threads)

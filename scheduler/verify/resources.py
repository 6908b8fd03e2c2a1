"""Whether the device holds what a launch needs: its kernels fit its workers, and its workers fit the device."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.device import Device, Resources
from scheduler.errors import UnsafeProgram
from scheduler.program import Pinned, Plain, Ticketed
from scheduler.tasks import Kernel


def check_resources(
    number: int, launch: Pinned | Ticketed | Plain, kernels: Iterable[tuple[str, Kernel]], device: Device
) -> None:
    """Raises UnsafeProgram naming the resource that `launch` lacks.

    `kernels` are those of the regions it runs, with the regions' names. All workers of a pinned launch have to be
    resident at once, or one that is waited for may never get a slot (theorem T2); of the others, one is enough.
    """
    if isinstance(launch, Plain):
        for name, kernel in kernels:
            if device.occupancy(kernel.resources) < 1:
                raise UnsafeProgram(f"launch {number}: no block of '{name}' fits {_held(device, kernel.resources)}.")
        return
    for name, kernel in kernels:
        _check_kernel(number, launch, name, kernel)
    resident = device.resident(launch.resources)
    if resident < 1:
        raise UnsafeProgram(f"launch {number}: no worker fits {_held(device, launch.resources)}.")
    if isinstance(launch, Pinned) and len(launch.workers) > resident:
        raise UnsafeProgram(
            f"launch {number} has {len(launch.workers)} workers, of which only {resident} are resident at once on "
            f"{_held(device, launch.resources)}; a worker that is waited for may never get a slot."
        )


def _check_kernel(number: int, launch: Pinned | Ticketed, name: str, kernel: Kernel) -> None:
    for what, has, needs in (
        ("threads", launch.threads, kernel.threads),
        ("registers", launch.registers, kernel.registers),
        ("bytes of shared memory", launch.shared_memory, kernel.shared_memory),
    ):
        if has < needs:
            raise UnsafeProgram(f"launch {number}: its workers have {has} {what}, a block of '{name}' needs {needs}.")
    if kernel.opt_in and not launch.opt_in:
        raise UnsafeProgram(f"launch {number}: a block of '{name}' needs shared memory by opt-in, its workers lack it.")
    if not kernel.uniform_barriers and launch.threads > kernel.threads:
        raise UnsafeProgram(
            f"launch {number}: a barrier in '{name}' is not reached by all threads, so its {kernel.threads} threads "
            f"cannot run in workers of {launch.threads}: the others would miss it, or wait for ever."
        )


def _held(device: Device, block: Resources) -> str:
    opted = " by opt-in" if block.opt_in else ""
    return (
        f"device '{device.name}' with {block.threads} threads, {block.registers} registers and {block.shared_memory} "
        f"bytes of shared memory{opted} each"
    )

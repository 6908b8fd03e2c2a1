"""What reading, writing and copying takes. The one place: solvers, heuristics and the simulator ask here.

An operator takes the larger of its compute time and its memory time; its memory time is the sum over tiers of bytes
read by the tier's read bandwidth and bytes written by its write bandwidth. Copies that are waited for take bytes by the
link's synchronous bandwidth, before the operator. Copies beside an operator share one engine: the step takes the larger
of the operator's time and the sum of theirs. All times in nanoseconds.

Source: the roofline model (Williams, Waterman, Patterson, 2009); copies as in AutoTM (ASPLOS 2020), section 4.
"""

from __future__ import annotations

from memplan.tiers.machine import Link, Tier

NS = 1e9  # nanoseconds per second


def access_time(tier: Tier, read: int, written: int) -> float:
    """What an operator's bytes in one tier take."""
    return read * NS / tier.read_bandwidth + written * NS / tier.write_bandwidth


def operator_time(compute: float, memory: float) -> float:
    """What an operator takes that computes and waits for memory side by side."""
    return max(compute, memory)


def copy_time(link: Link, size: int, overlapped: bool) -> float:
    """What a copy takes; infinite where the link knows none beside an operator."""
    bandwidth = link.async_bandwidth if overlapped else link.sync_bandwidth
    return size * NS / bandwidth if bandwidth is not None else float("inf")


def step_time(operator: float, overlapped: float) -> float:
    """What a step takes whose copies (their sum) run beside the operator."""
    return max(operator, overlapped)

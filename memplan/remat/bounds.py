"""What no plan can do without, however often it computes."""

from __future__ import annotations

from memplan.ordering.arrays import Arrays


def least_need(arrays: Arrays) -> int:
    """A bound from below of the peak, in bytes.

    An operator needs its operands, results and workspace at once; when it runs first, every input that it or what
    waits for it reads is still there, since an input cannot be made again. At the end, all outputs are there.
    """
    inputs = [value for value in range(len(arrays.size)) if arrays.maker[value] < 0]
    bit = {value: 1 << place for place, value in enumerate(inputs)}
    size = {bit[value]: int(arrays.size[value]) for value in inputs}
    awaited = [0] * arrays.count  # sets of inputs
    cost: dict[int, int] = {0: 0}
    most = int(arrays.size[arrays.kept].sum())
    for one in range(arrays.count - 1, -1, -1):
        own = 0
        for value in map(int, arrays.reads[one]):
            own |= bit.get(value, 0)
        for later in map(int, arrays.behind[one]):
            own |= awaited[later]
        awaited[one] = own
        if own not in cost:
            cost[own] = sum(bytes_ for mask, bytes_ in size.items() if own & mask)
        read = sum(int(arrays.size[value]) for value in arrays.reads[one] if arrays.maker[value] >= 0)
        everything = cost[own] + sum(int(arrays.size[value]) for value in arrays.makes[one]) + read
        spared = min(int(arrays.reused[one]), int(arrays.size[arrays.reads[one]].sum()))
        most = max(most, everything + int(arrays.workspace[one]) - spared)
    return most if arrays.count else arrays.inputs_size()
